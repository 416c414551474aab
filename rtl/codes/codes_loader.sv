// Loads a program from card memory into the tables of all units, and checks it.
//
// The loader reads the header first. If the tables already hold the program (same owner, address,
// length and header, and so the same checksum), it is done. Otherwise it reads the rest in bursts
// and checks every beat: no index may point outside the tables or banks. After an error, the loader
// still takes all requested beats, and then reports the error.

module codes_loader
  import fs_pkg::*;
  import codes_pkg::*;
#(
  parameter int unsigned LANES = 8,
  parameter int unsigned LANE_BEATS = 1024,
  parameter int unsigned OPERATIONS = 1024
) (
  input  logic          clk_i,
  input  logic          rst_ni,

  input  logic          start_i,
  input  function_t     owner_i,    // owner_i, address_i and beats_i are constant until done_o
  input  card_beat_t    address_i,
  input  logic [15:0]   beats_i,    // length of the program with its header: at least 1

  output logic          read_valid_o,
  input  logic          read_ready_i,
  output card_beat_t    read_address_o,
  output logic [5:0]    read_beats_minus_1_o,

  input  logic          data_valid_i,
  input  logic          data_error_i,
  input  logic          data_last_i,
  input  beat_t         data_i,

  output table_write_t  table_o,
  output sizes_t        sizes_o,

  output logic          done_o,  // for one cycle, with the result
  output logic          bad_o,   // the program is damaged or does not fit
  output logic          fault_o  // card memory answered with an error
);
  typedef enum logic [2:0] {
    IDLE,
    HEADER,    // requests the header and waits for it
    MEASURE,   // computes sizes from the header
    COUNT,     // computes the number of beats from the sizes
    COMPARE,   // compares with the command, and with the program in the tables
    BODY,      // requests the body and waits for it
    CHECKSUM,  // waits for the checksum
    DONE
  } state_e;
  state_e state_q;

  if (LANE_BEATS < MAX_SLICE_BEATS || LANE_BEATS > 32768) begin : gen_lane_beats_check
    $error("a bank must hold a slice, and offsets have 16 bits");
  end
  if (OPERATIONS > 4096) begin : gen_operations_check
    $error("a program of so many operations has more beats than the loader counts");
  end

  // The program in the tables.
  logic loaded_q;
  function_t owner_q;
  card_beat_t address_q;
  logic [15:0] beats_q;
  header_t header_q;

  table_write_t write_q;  // the beat that came last
  header_t header;
  assign header = write_q.data;

  logic same_place;
  assign same_place = loaded_q && owner_q == owner_i && address_q == address_i && beats_q == beats_i;

  // Numbers computed from the header.
  logic [15:0] fill_rows_q, last_fill_row_q, program_beats_q, last_offset_q;
  logic header_fits_q, same_place_q;
  logic [15:0] same_words_q;  // one bit per word of 4 bytes of the header

  // Requests: bursts of 64 beats, and one burst for the rest.
  logic ask_q;                // a request is at the output
  card_beat_t ask_address_q;
  logic [15:0] ask_left_q;    // beats still to request, with those of this request
  logic ask_full;
  assign ask_full = ask_left_q >> 6 != '0;
  assign read_valid_o = ask_q;
  assign read_address_o = ask_address_q;
  assign read_beats_minus_1_o = ask_full ? '1 : ask_left_q[5:0] - 6'd1;

  // Data.
  logic [15:0] left_q;   // beats to come
  logic [15:0] index_q;  // index of the row of fills, or of the operation
  logic of_operations_q;
  logic error_q, bad_q;

  // Checks: the parts of a beat one cycle after it came, then the whole beat.
  logic ends_q;  // this is the program's last beat

  // `last_offset_q` is the offset of a bank's last slice.
  function automatic logic outside(input logic [15:0] offset);
    return offset > last_offset_q;
  endfunction

  fill_t [FILLS_PER_BEAT-1:0] fills;
  /* verilator lint_off UNUSEDSIGNAL */  // the guard of card memory checks the addresses that shard
                                         // and element give
  operation_t operation;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [FILLS_PER_BEAT-1:0] bad_fills, bad_fills_q;
  logic [MAX_LANES+1:0] bad_parts, bad_parts_q;  // of an operation: each term, the target, the end
  assign fills = write_q.data;
  assign operation = write_q.data;

  always_comb begin
    for (int unsigned i = 0; i < FILLS_PER_BEAT; i++) begin
      bad_fills[i] = {write_q.index[12:0], 3'(i)} < header_q.fills
                  && (fills[i].lane >= 16'(LANES) || outside(fills[i].offset));
    end
    for (int unsigned l = 0; l < MAX_LANES; l++) begin
      bad_parts[l] = operation.terms[l].coefficient != '0
                  && (l >= LANES || outside(operation.terms[l].offset));
    end
    bad_parts[MAX_LANES] = operation.scratch && (operation.lane >= 8'(LANES) || outside(operation.offset));
    bad_parts[MAX_LANES+1] = ends_q && !operation.last;
  end

  always_ff @(posedge clk_i) begin
    bad_fills_q <= (write_q.valid && !write_q.is_operation) ? bad_fills : '0;
    bad_parts_q <= (write_q.valid && write_q.is_operation) ? bad_parts : '0;
  end

  assign table_o = write_q;
  assign sizes_o = '{
    fills: header_q.fills,
    operations: header_q.operations,
    slice_beats: header_q.slice_beats[6:0]
  };

  logic sum_valid;
  logic [31:0] sum;

  crc32c i_sum (
    .clk_i,
    .rst_ni,
    .in_valid_i (write_q.valid),
    .in_data_i  (write_q.data),
    .in_last_i  (ends_q),
    .in_bytes_i (7'd64),
    .out_valid_o(sum_valid),
    .out_sum_o  (sum)
  );

  assign done_o = state_q == DONE;
  assign fault_o = error_q;
  assign bad_o = bad_q && !error_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      state_q <= IDLE;
      loaded_q <= 1'b0;
      ask_q <= 1'b0;
      write_q.valid <= 1'b0;
    end else begin
      write_q.valid <= 1'b0;
      if (bad_fills_q != '0 || bad_parts_q != '0) bad_q <= 1'b1;
      if (read_valid_o && read_ready_i) begin
        ask_address_q <= ask_address_q + card_beat_t'(64);
        ask_left_q <= ask_left_q - 16'd64;
        ask_q <= ask_left_q > 16'd64;
      end

      unique case (state_q)
        IDLE: if (start_i) begin
          state_q <= HEADER;
          ask_q <= 1'b1;
          ask_address_q <= address_i;
          ask_left_q <= 16'd1;
          error_q <= 1'b0;
          bad_q <= 1'b0;
        end

        HEADER: if (data_valid_i) begin
          state_q <= MEASURE;
          error_q <= data_error_i;
          write_q.data <= data_i;
        end

        MEASURE: begin
          state_q <= COUNT;
          fill_rows_q <= (header.fills + 16'd7) >> 3;
          header_fits_q <= header.magic == MAGIC
                        && header.fills != '0 && header.fills <= 16'(OPERATIONS)
                        && header.operations != '0 && header.operations <= 16'(OPERATIONS)
                        && header.slice_beats != '0 && header.slice_beats <= 16'(MAX_SLICE_BEATS);
          same_place_q <= same_place;
          for (int unsigned w = 0; w < 16; w++) begin
            same_words_q[w] <= header[32*w +: 32] == header_q[32*w +: 32];
          end
          header_q <= header;
        end

        COUNT: begin
          state_q <= COMPARE;
          last_fill_row_q <= fill_rows_q - 16'd1;
          program_beats_q <= 16'd1 + fill_rows_q + header_q.operations;
          last_offset_q <= 16'(LANE_BEATS) - header_q.slice_beats;
        end

        COMPARE: begin
          left_q <= beats_i - 16'd1;
          index_q <= '0;
          of_operations_q <= 1'b0;
          if (error_q || !header_fits_q || beats_i != program_beats_q) begin
            loaded_q <= 1'b0;
            bad_q <= 1'b1;
            state_q <= DONE;
          end else if (same_place_q && same_words_q == '1) begin
            state_q <= DONE;
          end else begin
            loaded_q <= 1'b0;
            state_q <= BODY;
            ask_q <= 1'b1;
            ask_address_q <= address_i + 1'b1;
            ask_left_q <= beats_i - 16'd1;
          end
        end

        BODY: begin
          if (data_valid_i) begin
            write_q <= '{valid: 1'b1, is_operation: of_operations_q, index: index_q, data: data_i};
            ends_q <= left_q == 16'd1;
            left_q <= left_q - 16'd1;
            error_q <= error_q || data_error_i;
            if (!of_operations_q && index_q == last_fill_row_q) begin
              of_operations_q <= 1'b1;
              index_q <= '0;
            end else begin
              index_q <= index_q + 16'd1;
            end
          end
          if (write_q.valid && ends_q) state_q <= CHECKSUM;
        end

        CHECKSUM: if (sum_valid) begin
          state_q <= DONE;
          bad_q <= bad_q || sum != header_q.checksum;
          loaded_q <= !bad_q && !error_q && sum == header_q.checksum;
          owner_q <= owner_i;
          address_q <= address_i;
          beats_q <= beats_i;
        end

        DONE: state_q <= IDLE;
        default: state_q <= IDLE;
      endcase
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni)
                   data_valid_i |-> state_q == HEADER || (state_q == BODY && left_q != '0))
  else $error("data that were not asked for");
  assert property (@(posedge clk_i) disable iff (!rst_ni)
                   (data_valid_i && state_q == HEADER) |-> data_last_i)
  else $error("a burst is longer than it was asked for");
endmodule
