// The guard of the functions' windows, for one side (reads or writes) of the card memory.
//
// A round-robin arbiter picks the client whose request the gate takes. The request waits in a FIFO
// while a pipeline of short stages that never stalls checks the request:
//
//   extent   the request's extent and owner are in registers
//   window   the owner's window, and the extent's last beat
//   sides    not below the window, not beyond its end
//   result   joins the request at the output
//
// The pipeline cannot stall, so the gate takes a request only if the FIFO has a free place for it.
// The gate takes one request per cycle. No request leaves without a check result. The check uses
// the window as it was when the request passed through the pipeline.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues

module fs_card_gate
  import fs_pkg::*;
#(
  parameter int unsigned CLIENTS = 4,
  parameter int unsigned FUNCTIONS = 16,
  parameter int unsigned REQUEST_BITS = 64
) (
  input  logic                                  clk_i,
  input  logic                                  rst_ni,

  input  logic [CLIENTS-1:0]                    valid_i,
  output logic [CLIENTS-1:0]                    ready_o,
  input  card_read_t [CLIENTS-1:0]              extent_i,   // the beats of the request, and its
                                                            // owner
  input  logic [CLIENTS-1:0][REQUEST_BITS-1:0]  request_i,  // the request itself

  input  card_beat_t [FUNCTIONS-1:0]            window_base_i,
  input  card_beat_t [FUNCTIONS-1:0]            window_end_i,

  output logic                                  valid_o,
  input  logic                                  ready_i,
  output logic                                  fits_o,     // the request is inside its function's
                                                            // window
  output logic [CLIENTS-1:0]                    client_o,   // one-hot
  output logic [REQUEST_BITS-1:0]               request_o
);
  localparam int unsigned FUNCTION_BITS = (FUNCTIONS > 1) ? $clog2(FUNCTIONS) : 1;
  localparam int unsigned DEPTH = 8;  // more than the cycles from taking a request to its exit
  localparam int unsigned ROOM_BITS = $clog2(DEPTH + 1);

  if (FUNCTIONS > 16) begin : gen_functions_check
    $error("function_t names at most 16 functions");
  end

  typedef struct packed {
    card_beat_t  base;
    card_beat_t  stop;
  } window_t;

  // The window of a function that does not exist is empty.
  function automatic window_t window_of(input function_t owner);
    if (32'(owner) >= FUNCTIONS) return '0;
    return '{base: window_base_i[FUNCTION_BITS'(owner)], stop: window_end_i[FUNCTION_BITS'(owner)]};
  endfunction

  // Taking requests.
  logic [ROOM_BITS-1:0] room_q;  // free places of the FIFO
  logic has_room, taken, leaves;
  logic [CLIENTS-1:0] holder;
  card_read_t extent;
  logic [REQUEST_BITS-1:0] request;

  fs_arbiter_registered #(
    .COUNT(CLIENTS)
  ) i_arbiter (
    .clk_i,
    .rst_ni,
    .request_i(valid_i),
    .ready_i  (has_room),
    .holder_o (holder)
  );

  assign has_room = room_q != '0;
  assign ready_o = has_room ? holder : '0;
  assign taken = has_room && (valid_i & holder) != '0;
  assign leaves = valid_o && ready_i;

  always_comb begin
    extent = '0;
    request = '0;
    for (int unsigned i = 0; i < CLIENTS; i++) begin
      if (holder[i]) begin
        extent |= extent_i[i];
        request |= request_i[i];
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) room_q <= ROOM_BITS'(DEPTH);
    else if (taken != leaves) room_q <= leaves ? room_q + 1'b1 : room_q - 1'b1;
  end

  // Checking requests.
  logic [2:0] checking_q;
  card_read_t extent_q;
  window_t window_q;
  card_beat_t first_q;
  logic [CARD_BEAT_BITS:0] last_q;
  logic not_below_q, not_beyond_q;

  always_ff @(posedge clk_i) begin
    extent_q <= extent;
    window_q <= window_of(extent_q.owner);
    first_q <= extent_q.address;
    last_q <= {1'b0, extent_q.address} + (CARD_BEAT_BITS + 1)'(extent_q.beats_minus_1);
    not_below_q <= first_q >= window_q.base;
    not_beyond_q <= last_q < {1'b0, window_q.stop};
    checking_q <= rst_ni ? {checking_q[1:0], taken} : '0;
  end

  // Handing on requests with their check results.
  logic request_space, request_valid, result_space;

  fs_fifo #(
    .WIDTH(CLIENTS + REQUEST_BITS),
    .DEPTH(DEPTH)
  ) i_requests (
    .clk_i,
    .rst_ni,
    .in_valid_i (taken),
    .in_ready_o (request_space),
    .in_data_i  ({holder, request}),
    .out_valid_o(request_valid),
    .out_ready_i(leaves),
    .out_data_o ({client_o, request_o}),
    .level_o    ()
  );

  fs_fifo #(
    .WIDTH(1),
    .DEPTH(DEPTH)
  ) i_results (
    .clk_i,
    .rst_ni,
    .in_valid_i (checking_q[2]),
    .in_ready_o (result_space),
    .in_data_i  (not_below_q && not_beyond_q),
    .out_valid_o(valid_o),
    .out_ready_i(ready_i),
    .out_data_o (fits_o),
    .level_o    ()
  );

  assert property (@(posedge clk_i) disable iff (!rst_ni) !taken || request_space)
  else $error("no space for a request");
  assert property (@(posedge clk_i) disable iff (!rst_ni) !checking_q[2] || result_space)
  else $error("no space for a check result");
  assert property (@(posedge clk_i) disable iff (!rst_ni) !valid_o || request_valid)
  else $error("a check result without a request");
endmodule
