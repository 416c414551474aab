// Vectors of items, one row per context. A read takes a whole row; a write may take single items.

module crush_rows
  import crush_pe_pkg::*;
#(
  parameter int unsigned DEPTH = 32
) (
  input  logic                      clk_i,

  input  logic                      read_i,
  input  logic [$clog2(DEPTH)-1:0]  read_index_i,
  output row_t                      read_row_o,  // one cycle later; stays until the next read

  input  mask_t                     write_i,     // the items to write
  input  logic [$clog2(DEPTH)-1:0]  write_index_i,
  input  row_t                      write_row_i
);
  for (genvar i = 0; i < ROW_ITEMS; i++) begin : gen_item
    logic [31:0] items_q [DEPTH];
    always_ff @(posedge clk_i) begin
      if (write_i[i]) items_q[write_index_i] <= write_row_i[i];
      if (read_i) read_row_o[i] <= items_q[read_index_i];
    end
  end
endmodule
