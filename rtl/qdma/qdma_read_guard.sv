// The guard of host reads, the last unit on a request's way to the host. If a request is not wholly
// inside its function's window, the guard does not forward it. The guard answers it with error
// beats of zeros. The units before the guard have checked descriptors, but the guard does not rely
// on these checks.
//
// A function that is being reset has no window. What the guard refuses for that reason is no fault
// of the function, and refused_o does not count it. The guard looks when a request enters: at most
// two requests that entered before the reset leave after it.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues

module qdma_read_guard
  import qdma_pkg::*;
(
  input  logic        clk_i,
  input  logic        rst_ni,
  input  windows_t [FUNCTIONS-1:0] windows_i,
  input  logic [FUNCTIONS-1:0] reset_i,  // functions that are being reset
  output logic        refused_o,  // one more request outside of its function's window

  input  logic        in_valid_i,
  output logic        in_ready_o,
  input  host_read_t  in_i,
  output logic        in_data_valid_o,
  output host_data_t  in_data_o,

  output logic        host_valid_o,
  input  logic        host_ready_i,
  output host_read_t  host_o,
  input  logic        host_data_valid_i,
  output logic        host_data_ready_o,
  input  host_data_t  host_data_i
);
  // ---- Requests: look up the window, then compare ---------------------------------------------

  logic valid_q, compared_q, cut_off_q, counts_q, inside_q, move, leave;
  host_read_t request_q;
  window_t window_q;
  logic [57:0] last_beat;
  assign last_beat = request_q.address | 58'(request_q.two);  // a request of two beats begins at an
                                                              // even beat
  assign move = !compared_q || leave;
  assign in_ready_o = !valid_q || move;

  logic refused_room;
  assign host_valid_o = compared_q && inside_q;
  assign leave = inside_q ? host_ready_i : refused_room;

  always_ff @(posedge clk_i) begin
    if (in_valid_i && in_ready_o) begin
      request_q <= in_i;
      window_q <= windows_i[in_i.owner].host;
      cut_off_q <= reset_i[in_i.owner];
    end
    if (valid_q && move) begin
      host_o <= request_q;
      inside_q <= !cut_off_q && request_q.address >= window_q.base && last_beat < window_q.limit;
      counts_q <= !cut_off_q;
    end
    if (!rst_ni) begin
      valid_q <= 1'b0;
      compared_q <= 1'b0;
    end else begin
      if (in_ready_o) valid_q <= in_valid_i;
      if (move) compared_q <= valid_q;
    end
  end

  // ---- Answers: from the host, or for refused requests ---------------------------------------

  logic refused_valid, refused_two, second_q;
  host_tag_t refused_tag;
  fs_fifo #(.WIDTH($bits(host_tag_t) + 1), .DEPTH(4)) i_refused (
    .clk_i, .rst_ni,
    .in_valid_i(compared_q && !inside_q), .in_ready_o(refused_room), .in_data_i({host_o.tag, host_o.two}),
    .out_valid_o(refused_valid), .out_ready_i(second_q || !refused_two),
    .out_data_o({refused_tag, refused_two}), .level_o()
  );
  assign host_data_ready_o = !refused_valid;
  assign refused_o = compared_q && !inside_q && refused_room && counts_q;

  always_ff @(posedge clk_i) begin
    if (refused_valid) begin
      in_data_o <= '{tag: refused_tag, error: 1'b1, last: second_q || !refused_two, data: '0};
    end else if (host_data_valid_i) begin
      in_data_o <= host_data_i;
    end
    if (!rst_ni) begin
      in_data_valid_o <= 1'b0;
      second_q <= 1'b0;
    end else begin
      in_data_valid_o <= refused_valid || host_data_valid_i;
      second_q <= refused_valid && refused_two && !second_q;
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni)
    !in_valid_i || !(in_i.two && in_i.address[0]))
  else $error("two beats that do not lie together");
endmodule
