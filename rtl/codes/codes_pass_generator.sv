// The passes of a job: every slice of every stripe, in the order of their addresses. The module
// loads the job while it is in reset, and offers the passes after the reset.

module codes_pass_generator
  import fs_pkg::*;
  import codes_pkg::*;
(
  input  logic            clk_i,
  input  logic            rst_ni,

  input  card_beat_t      input_i,         // address of stripe 0
  input  card_beat_t      output_i,
  input  card_beat_t      input_batch_i,   // distance of two stripes
  input  card_beat_t      output_batch_i,
  input  element_beats_t  element_beats_i,
  input  logic [31:0]     batch_i,         // number of stripes, at least 1
  input  logic [6:0]      slice_beats_i,

  output logic            pass_valid_o,
  input  logic            pass_ready_i,
  output slice_t          source_o,
  output slice_t          target_o,
  output logic            done_o           // all passes have been taken
);
  place_t source_q, target_q;                // of the next slice
  place_t source_stripe_q, target_stripe_q;  // of the next stripe
  element_beats_t left_q;                    // left of the element
  logic [31:0] stripes_left_q;

  logic ends_stripe;
  assign ends_stripe = left_q <= element_beats_t'(slice_beats_i);

  assign done_o = stripes_left_q == '0;
  assign pass_valid_o = !done_o;
  logic [6:0] beats;
  assign beats = ends_stripe ? left_q[6:0] : slice_beats_i;
  assign source_o = '{place: source_q, beats: beats};
  assign target_o = '{place: target_q, beats: beats};

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      source_q <= '{outside: 1'b0, beat: input_i};
      target_q <= '{outside: 1'b0, beat: output_i};
      source_stripe_q <= add('{outside: 1'b0, beat: input_i}, input_batch_i);
      target_stripe_q <= add('{outside: 1'b0, beat: output_i}, output_batch_i);
      left_q <= element_beats_i;
      stripes_left_q <= batch_i;
    end else if (pass_valid_o && pass_ready_i) begin
      if (ends_stripe) begin
        source_q <= source_stripe_q;
        target_q <= target_stripe_q;
        source_stripe_q <= add(source_stripe_q, input_batch_i);
        target_stripe_q <= add(target_stripe_q, output_batch_i);
        left_q <= element_beats_i;
        stripes_left_q <= stripes_left_q - 1'b1;
      end else begin
        source_q <= add(source_q, card_beat_t'(slice_beats_i));
        target_q <= add(target_q, card_beat_t'(slice_beats_i));
        left_q <= left_q - element_beats_t'(slice_beats_i);
      end
    end
  end
endmodule
