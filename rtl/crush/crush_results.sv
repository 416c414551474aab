// Writes the results of mappings to card memory, one row of 64 bytes each: a count and 15 items.
// Positions without an item hold ITEM_NONE. After the module has read a result, the context is
// free. When the row has landed, the module tells its job.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues
/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module crush_results
  import crush_pkg::*;
  import crush_pe_pkg::*;
#(
  parameter int unsigned WRITES = 16  // rows that are being written
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,

  input  job_t [JOBS-1:0]      jobs_i,

  // From crush_rule_engine.
  input  logic                 done_valid_i,
  output logic                 done_ready_o,
  input  tag_t                 done_index_i,
  input  mapping_t             done_mapping_i,
  input  logic [3:0]           done_count_i,
  input  mask_t                done_mask_i,
  output logic                 result_read_o,
  output tag_t                 result_index_o,
  input  row_t                 result_row_i,

  output logic                 free_valid_o,
  output tag_t                 free_index_o,

  output logic                 write_valid_o,
  input  logic                 write_ready_i,
  output fs_pkg::card_write_t  write_o,
  input  fs_pkg::card_done_t   done_i,

  output logic                 landed_o,      // a row of landed_job_o has landed
  output logic                 landed_error_o,
  output job_index_t           landed_job_o
);
  // The module reads a result in one cycle, forms the row in the next, and offers the row from then
  // on.
  logic read_q, write_valid_q, has_places;
  tag_t index_q;
  job_index_t job_q, write_job_q;
  fs_pkg::card_beat_t row_address_q;
  logic [3:0] count_q;
  mask_t mask_q;

  assign done_ready_o = !read_q && !write_valid_q;
  assign result_read_o = done_valid_i && done_ready_o;
  assign result_index_o = done_index_i;

  row_t items;
  always_comb begin
    for (int unsigned i = 0; i < ROW_ITEMS; i++) items[i] = mask_q[i] ? result_row_i[i] : ITEM_NONE;
  end

  always_ff @(posedge clk_i) begin
    if (result_read_o) begin
      index_q <= done_index_i;
      job_q <= done_mapping_i.job;
      row_address_q <= done_mapping_i.row;
      count_q <= done_count_i;
      mask_q <= done_mask_i;
    end
    if (read_q) begin
      write_o.owner <= jobs_i[job_q].owner;
      write_o.address <= row_address_q;
      write_o.strobe <= '1;
      write_o.data <= {items, 28'd0, count_q};
      write_job_q <= job_q;
    end
    if (!rst_ni) begin
      read_q <= 1'b0;
      write_valid_q <= 1'b0;
    end else begin
      read_q <= result_read_o;
      if (read_q) write_valid_q <= 1'b1;
      else if (write_valid_o && write_ready_i) write_valid_q <= 1'b0;
    end
  end

  assign free_valid_o = read_q;
  assign free_index_o = index_q;
  assign write_valid_o = write_valid_q && has_places;

  logic has_landing;
  fs_fifo #(
    .WIDTH($bits(job_index_t)),
    .DEPTH(WRITES)
  ) i_on_their_way (
    .clk_i,
    .rst_ni,
    .in_valid_i  (write_valid_o && write_ready_i),
    .in_ready_o  (has_places),
    .in_data_i   (write_job_q),
    .out_valid_o (has_landing),
    .out_ready_i (done_i.valid),
    .out_data_o  (landed_job_o),
    .level_o     ()
  );
  assign landed_o = done_i.valid;
  assign landed_error_o = done_i.error;

  assert property (@(posedge clk_i) disable iff (!rst_ni) !done_i.valid || has_landing)
  else $error("a write was answered that was not made");
endmodule
