// Properties of fs_fifo, for a solver: the level is the number of beats, and a watched beat comes
// out unchanged and in order.

module fs_fifo_formal #(
  parameter int unsigned DEPTH = 3,
  parameter int unsigned WIDTH = 2
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic              in_valid_i,
  input  logic [WIDTH-1:0]  in_data_i,
  input  logic              out_ready_i,
  input  logic              watch_i      // the solver's choice of the beat to watch
);
  logic in_ready, out_valid;
  logic [WIDTH-1:0] out_data;
  logic [$clog2(DEPTH+1)-1:0] level;

  fs_fifo #(.WIDTH(WIDTH), .DEPTH(DEPTH)) i_fifo (
    .clk_i, .rst_ni,
    .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data), .level_o(level)
  );

  logic push, pop;
  assign push = in_valid_i && in_ready;
  assign pop = out_valid && out_ready_i;

  logic [7:0] count_q, before_q;  // beats inside; beats before the watched one
  logic is_watching_q;
  logic [WIDTH-1:0] watched_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      count_q <= '0;
      is_watching_q <= 1'b0;
    end else begin
      count_q <= count_q + 8'(push) - 8'(pop);
      if (push && watch_i && !is_watching_q) begin
        is_watching_q <= 1'b1;
        watched_q <= in_data_i;
        before_q <= count_q - 8'(pop);
      end else if (is_watching_q && pop) begin
        before_q <= before_q - 1'b1;
        if (before_q == '0) is_watching_q <= 1'b0;
      end
    end
  end

  always_comb begin
    if (rst_ni) begin
      assert (8'(level) == count_q);
      assert (count_q <= 8'(DEPTH));
      assert (out_valid == (count_q != '0));
      assert (in_ready == (count_q != 8'(DEPTH)));
      if (is_watching_q && before_q == '0) assert (out_valid && out_data == watched_q);
    end
  end
endmodule
