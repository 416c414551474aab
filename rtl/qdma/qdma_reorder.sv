// The reorder buffer: 256 places of two beats. Every read request takes a place, in order. The
// place's number is the request's tag. Data fills places in any order. Beats leave in the order in
// which their places were taken. A single beat lies in the second half of its place.
//
// A counter (seen_q) goes through the places in order and stops at the first place without its
// data. It runs ahead of the counter that drains the buffer (drained_q). All places between the two
// counters have their data.

module qdma_reorder #(
  parameter int unsigned NOTE_BITS = 8
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,

  input  logic                  take_valid_i,
  output logic                  take_ready_o,
  input  logic                  take_two_i,
  input  logic [NOTE_BITS-1:0]  take_note_i,  // comes back with the beats of the request
  output logic [7:0]            take_number_o,

  input  logic                  fill_valid_i,  // no back-pressure: always taken
  input  logic [7:0]            fill_number_i,
  input  logic                  fill_last_i,
  input  logic                  fill_error_i,
  input  fs_pkg::beat_t         fill_data_i,

  output logic                  out_valid_o,
  input  logic                  out_ready_i,
  output logic [NOTE_BITS-1:0]  out_note_o,
  output logic                  out_second_o,  // second of two beats
  output logic                  out_last_o,    // last of its place
  output logic                  out_error_o,
  output fs_pkg::beat_t         out_data_o
);
  localparam int unsigned PLACES = fs_regs_pkg::H2C_REQUESTS;

  logic [fs_pkg::BEAT_BITS:0] beats_q [2 * PLACES];  // error, data
  logic [fs_pkg::BEAT_BITS:0] beat_q;
  logic [NOTE_BITS-1:0] notes_q [PLACES];
  logic two_q [PLACES];
  logic [PLACES-1:0] full_q;
  logic [8:0] taken_q, seen_q, drained_q;  // one bit more than a place's number
  logic half_q;

  assign take_number_o = taken_q[7:0];
  assign take_ready_o = (taken_q ^ drained_q) != 9'h100;

  logic take;
  assign take = take_valid_i && take_ready_o;

  logic [7:0] place;
  logic sees, half, advance, out_valid_q;
  assign place = drained_q[7:0];
  assign sees = full_q[seen_q[7:0]];
  assign half = half_q || !two_q[place];
  assign advance = seen_q != drained_q && (!out_valid_q || out_ready_i);

  always_ff @(posedge clk_i) begin
    if (take) begin
      notes_q[taken_q[7:0]] <= take_note_i;
      two_q[taken_q[7:0]] <= take_two_i;
    end
    if (fill_valid_i) beats_q[{fill_number_i, fill_last_i}] <= {fill_error_i, fill_data_i};
    if (advance) begin
      beat_q <= beats_q[{place, half}];
      out_note_o <= notes_q[place];
      out_second_o <= half_q;
      out_last_o <= half;
    end
    if (!rst_ni) begin
      taken_q <= '0;
      seen_q <= '0;
      drained_q <= '0;
      half_q <= 1'b0;
      full_q <= '0;
      out_valid_q <= 1'b0;
    end else begin
      if (take) taken_q <= taken_q + 1'b1;
      if (fill_valid_i && fill_last_i) full_q[fill_number_i] <= 1'b1;
      if (sees) begin
        seen_q <= seen_q + 1'b1;
        full_q[seen_q[7:0]] <= 1'b0;
      end
      if (advance) half_q <= !half;
      if (advance && half) drained_q <= drained_q + 1'b1;
      if (advance) out_valid_q <= 1'b1;
      else if (out_ready_i) out_valid_q <= 1'b0;
    end
  end
  assign out_valid_o = out_valid_q;
  assign {out_error_o, out_data_o} = beat_q;

  assert property (@(posedge clk_i) disable iff (!rst_ni) !fill_valid_i
    || !(full_q[fill_number_i] || 9'(8'(fill_number_i - place)) < seen_q - drained_q))
  else $error("an answer for a place that has its data");
endmodule
