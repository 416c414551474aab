// Checks a descriptor: operation, permission, alignment, lengths, and whether all memory that it
// names directly lies inside its function's windows. The unit checks one descriptor at a time. All
// ranges share one comparator of windows, so a check takes about a dozen cycles. The check result
// is the first finding in the order below. Wide numbers are compared in one cycle, and the result
// is used in the next.
//
// The engines check what only they know (their tables and the addresses in these tables). The
// guards also check every access.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_check
  import qdma_pkg::*;
  import fs_regs_pkg::*;
(
  input  logic               clk_i,
  input  logic               rst_ni,
  input  windows_t [FUNCTIONS-1:0] windows_i,

  input  logic               start_i,
  input  fs_pkg::function_t  owner_i,
  input  logic               c2h_i,
  input  logic               unread_i,  // host memory answered with an error
  input  fs_pkg::beat_t      head_i,    // the descriptor's first beat

  output logic               done_o,
  output check_result_t      check_result_o,
  output copy_t              copy_o
);
  typedef enum logic [2:0] { IDLE, CLASSIFY, SHAPE, PICK, ADD, COMPARE, DONE } state_e;
  state_e state_q;

  // The first fields of a descriptor.
  typedef struct packed {
    logic [63:0] next;
    logic [63:0] length;
    logic [63:0] destination;
    logic [63:0] source;
    logic [31:0] after;
    logic [15:0] cookie;
    logic [7:0] flags;
    logic [7:0] op;
  } head_t;

  fs_pkg::function_t owner_q;
  logic c2h_q, unread_q;
  head_t head_q;
  check_result_t check_result_q;

  // ---- Decoding -------------------------------------------------------------------------------

  unit_e target;
  logic known;
  always_comb begin
    target = UNIT_NONE;
    known = 1'b1;
    if (c2h_q) begin
      unique case (head_q.op)
        C2H_OP_NOP: ;
        C2H_OP_COPY: target = UNIT_C2H;
        default: known = 1'b0;
      endcase
    end else begin
      unique case (head_q.op)
        H2C_OP_NOP: ;
        H2C_OP_COPY: target = UNIT_H2C;
        H2C_OP_PLACE, H2C_OP_LOAD_MAP: target = UNIT_PLACE;
        H2C_OP_CODE: target = UNIT_CODE;
        H2C_OP_CHECKSUM: target = UNIT_CHECKSUM;
        H2C_OP_RECONFIGURE: target = UNIT_RECONFIGURE;
        default: known = 1'b0;
      endcase
    end
  end

  // The ranges that the descriptor has: the host memory of a copy; LENGTH bytes of card memory; the
  // beginning of the engine's output; the next descriptor.
  logic is_copy, is_shared, has_destination;
  logic [3:0] ranges_q;
  assign is_copy = check_result_q.target == UNIT_H2C || check_result_q.target == UNIT_C2H;
  assign has_destination = (check_result_q.target == UNIT_PLACE && head_q.op == H2C_OP_PLACE)
      || check_result_q.target == UNIT_CHECKSUM;
  // Only function 0 may change the state that all functions share.
  assign is_shared = check_result_q.target == UNIT_RECONFIGURE
      || (check_result_q.target == UNIT_PLACE && head_q.op == H2C_OP_LOAD_MAP);

  // ---- Shape: each number alone ---------------------------------------------------------------

  typedef struct packed {
    logic source;  // does not begin at a beat
    logic destination;
    logic next;    // does not begin at a descriptor
    logic zero;    // the length is 0
    logic beyond_copy;
    logic beyond_card;
    logic foreign;      // not from function 0
    logic linked;
  } shape_t;
  shape_t shape_q;

  logic bad_destination, bad_length;
  assign bad_destination = (is_copy || has_destination) && shape_q.destination;
  assign bad_length = shape_q.zero || (is_copy ? shape_q.beyond_copy : shape_q.beyond_card);

  // ---- Windows: one range after the other -----------------------------------------------------

  logic [1:0] range_q;
  windows_t windows_q;  // of the function
  window_t window_q;    // for the range
  host_beat_t first_q;
  logic [34:0] beats_q;
  logic [58:0] past_q;  // the first beat after the range
  logic below_q, beyond_q;
  logic [34:0] count, count_q;
  host_beat_t first;
  assign count = 35'(head_q.length[39:6]) + 35'(head_q.length[5:0] != '0);
  always_comb begin
    unique case (range_q)
      2'd0: first = c2h_q ? head_q.destination[63:6] : head_q.source[63:6];
      2'd1: first = (is_copy && !c2h_q) ? head_q.destination[63:6] : head_q.source[63:6];
      2'd2: first = head_q.destination[63:6];
      2'd3: first = head_q.next[63:6];
    endcase
  end

  task automatic fail_if(input logic bad, input status_e status, input logic [63:0] detail);
    if (bad && check_result_q.status == STATUS_OK) begin
      check_result_q.status <= status;
      check_result_q.detail <= detail;
    end
  endtask

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      state_q <= IDLE;
    end else begin
      unique case (state_q)
        IDLE: begin
          if (start_i) begin
            {owner_q, c2h_q, unread_q} <= {owner_i, c2h_i, unread_i};
            head_q <= head_i[$bits(head_t)-1:0];
            state_q <= CLASSIFY;
          end
        end

        CLASSIFY: begin
          check_result_q <= '{
            status: unread_q ? STATUS_HOST_ERROR : known ? STATUS_OK : STATUS_BAD_OP,
            detail: known ? '0 : 64'(head_q.op),
            target: target,
            flags: head_q.flags[2:0],
            cookie: head_q.cookie,
            after: head_q.after,
            next: head_q.next,
            copy_bytes: head_q.length[24:0]
          };
          if (unread_q) begin
            // The descriptor was not read, so no field of it is valid.
            {check_result_q.detail, check_result_q.flags} <= '0;
            {check_result_q.cookie, check_result_q.next} <= '0;
          end
          shape_q <= '{
            source: head_q.source[5:0] != '0,
            destination: head_q.destination[5:0] != '0,
            next: head_q.next[6:0] != '0,
            zero: head_q.length == '0,
            beyond_copy: head_q.length > 64'(MAX_COPY_BYTES),
            beyond_card: head_q.length[63:40] != '0,
            foreign: owner_q != '0,
            linked: head_q.next != '0
          };
          windows_q <= windows_i[owner_q];
          state_q <= (unread_q || !known) ? DONE : SHAPE;
        end

        SHAPE: begin
          if (is_shared && shape_q.foreign) begin
            fail_if(1'b1, STATUS_NOT_PERMITTED, 64'(owner_q));
          end else if (check_result_q.target != UNIT_NONE && shape_q.source) begin
            fail_if(1'b1, STATUS_BAD_ALIGNMENT, head_q.source);
          end else if (bad_destination) begin
            fail_if(1'b1, STATUS_BAD_ALIGNMENT, head_q.destination);
          end else if (shape_q.next) begin
            fail_if(1'b1, STATUS_BAD_ALIGNMENT, head_q.next);
          end else if (check_result_q.target != UNIT_NONE && bad_length) begin
            fail_if(1'b1, STATUS_BAD_LENGTH, head_q.length);
          end
          ranges_q <= {
            shape_q.linked, has_destination, check_result_q.target != UNIT_NONE, is_copy
          };
          range_q <= 2'd0;
          {below_q, beyond_q} <= '0;
          count_q <= count;
          state_q <= PICK;
        end

        // The unit picks the next range while it checks the last one; range_q is already one range
        // further.
        PICK: begin
          fail_if(below_q || beyond_q,
                  (range_q == 2'd1 || range_q == 2'd0) ? STATUS_HOST_FAULT : STATUS_CARD_FAULT,
                  {first_q, 6'd0});
          {below_q, beyond_q} <= '0;
          ranges_q <= ranges_q >> 1;
          range_q <= range_q + 1'b1;
          first_q <= first;
          beats_q <= (range_q < 2'd2) ? count_q : (range_q == 2'd2) ? 35'd1 : 35'd2;
          window_q <= (range_q == 2'd0 || range_q == 2'd3) ? windows_q.host : '{
            base: 58'(windows_q.card.base), limit: 58'(windows_q.card.limit)
          };
          if (check_result_q.status != STATUS_OK || ranges_q == '0) state_q <= DONE;
          else if (ranges_q[0]) state_q <= ADD;
        end

        ADD: begin
          past_q <= 59'(first_q) + 59'(beats_q);
          state_q <= COMPARE;
        end

        COMPARE: begin
          below_q <= first_q < window_q.base;
          beyond_q <= past_q > 59'(window_q.limit);
          state_q <= PICK;
        end

        DONE: state_q <= IDLE;

        default: state_q <= IDLE;
      endcase
    end
  end

  assign done_o = state_q == DONE;
  assign check_result_o = check_result_q;
  assign copy_o = '{
    host: c2h_q ? head_q.destination[63:6] : head_q.source[63:6],
    card: c2h_q ? head_q.source[39:6] : head_q.destination[39:6],
    beats: 19'(count_q),
    tail_bytes: head_q.length[5:0]
  };
endmodule
