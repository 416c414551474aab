// Properties of fs_card_gate, for a solver, without a bound: a request leaves with the answer to the
// question whether it is wholly inside the window of the function that it names. So the crossbar,
// which passes only requests that fit, passes no other. The windows do not change between resets.
// Here a request is its own extent.

module fs_card_gate_formal
  import fs_pkg::*;
#(
  parameter int unsigned CLIENTS = 3,
  parameter int unsigned FUNCTIONS = 4
) (
  input  logic                        clk_i,
  input  logic                        rst_ni,
  input  card_beat_t [FUNCTIONS-1:0]  window_base_i,
  input  card_beat_t [FUNCTIONS-1:0]  window_end_i,
  input  logic [CLIENTS-1:0]          valid_i,
  input  card_read_t [CLIENTS-1:0]    extent_i,
  input  logic                        ready_i,
  input  logic [2:0]                  place_i
);
  localparam int unsigned FUNCTION_BITS = $clog2(FUNCTIONS);
  localparam int unsigned DEPTH = 8;  // of the gate's queues
  typedef logic [$clog2(DEPTH)-1:0] place_t;

  card_beat_t [FUNCTIONS-1:0] base_q, end_q;
  place_t place_q;  // the proof is about the requests of one place of the gate's queue: any of them
  logic was_reset_q = 1'b0;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) {base_q, end_q, place_q} <= {window_base_i, window_end_i, place_i};
    if (!rst_ni) was_reset_q <= 1'b1;
  end

  logic [CLIENTS-1:0] ready, client;
  logic valid, fits;
  card_read_t request;
  fs_card_gate #(
    .CLIENTS(CLIENTS), .FUNCTIONS(FUNCTIONS), .REQUEST_BITS($bits(card_read_t))
  ) i_gate (
    .clk_i, .rst_ni,
    .valid_i, .ready_o(ready), .extent_i, .request_i(extent_i),
    .window_base_i(base_q), .window_end_i(end_q),
    .valid_o(valid), .ready_i, .fits_o(fits), .client_o(client), .request_o(request)
  );

  // ---- What induction needs: the requests in the gate, and how far each is -----------------------

  // The requests are in places of one queue, from its oldest on. The first of them have a result in
  // the same place of the other queue; the others are in the stages of the pipeline.
  logic [3:0] held, judged, in_sides, in_window, in_extent;
  place_t oldest;
  assign oldest = i_gate.i_requests.read_q;
  assign held = i_gate.i_requests.level_q;
  assign judged = i_gate.i_results.level_q;
  assign in_sides = judged;
  assign in_window = in_sides + 4'(i_gate.checking_q[2]);
  assign in_extent = in_window + 4'(i_gate.checking_q[1]);

  // The request in the chosen place, how many are before it, and its answer.
  card_read_t extent;
  logic [CLIENTS-1:0] of;
  logic [3:0] number;
  place_t ahead;
  logic exists, is_inside;
  card_beat_t base, stop;
  logic [CARD_BEAT_BITS:0] last;
  assign {of, extent} = i_gate.i_requests.beats_q[place_q];
  assign ahead = place_q - oldest;
  assign number = 4'(ahead);
  assign exists = 32'(extent.owner) < FUNCTIONS;
  assign base = exists ? base_q[FUNCTION_BITS'(extent.owner)] : '0;
  assign stop = exists ? end_q[FUNCTION_BITS'(extent.owner)] : '0;
  assign last = {1'b0, extent.address} + (CARD_BEAT_BITS + 1)'(extent.beats_minus_1);
  assign is_inside = exists && extent.address >= base && last < {1'b0, stop};

  always_comb begin
    if (!was_reset_q) assume (!rst_ni);  // a reset comes first
    if (rst_ni && was_reset_q) begin
      if (valid && oldest == place_q) begin
        assert (request == extent && $onehot(client));
        assert (fits == is_inside);
      end
      // The queues are in step, and have room for what is on its way.
      assert (held <= 4'(DEPTH) && 4'(i_gate.room_q) + held == 4'(DEPTH));
      assert (held == in_extent + 4'(i_gate.checking_q[0]));
      assert (i_gate.i_results.read_q == oldest);
      assert (i_gate.i_requests.write_q == place_t'(oldest + place_t'(held)));
      assert (i_gate.i_results.write_q == place_t'(oldest + place_t'(judged)));
      assert (i_gate.i_requests.filled_q == (held != '0));
      assert (i_gate.i_requests.full_q == (held == 4'(DEPTH)));
      assert (i_gate.i_results.filled_q == (judged != '0));
      assert (i_gate.i_results.full_q == (judged == 4'(DEPTH)));
      assert ($onehot(i_gate.i_arbiter.holder_q));
      // The request in the chosen place.
      if (number < held) assert ($onehot(of));
      if (number < judged) assert (i_gate.i_results.beats_q[place_q] == is_inside);
      if (i_gate.checking_q[2] && number == in_sides) begin
        assert ((i_gate.not_below_q && i_gate.not_beyond_q) == is_inside);
      end
      if (i_gate.checking_q[1] && number == in_window) begin
        assert (i_gate.window_q.base == base && i_gate.window_q.stop == stop);
        assert (i_gate.first_q == extent.address && i_gate.last_q == last);
      end
      if (i_gate.checking_q[0] && number == in_extent) assert (i_gate.extent_q == extent);
    end
  end
endmodule
