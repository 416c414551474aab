// Connects the clients of card memory to its one port, and guards the functions' windows.
//
// Reads and writes are independent. On each side, a gate (fs_card_gate) picks a client and compares
// its request with the window of its function. Only requests inside the window go to the memory.
// The crossbar answers a refused read with its number of error beats (of zeros), and a refused
// write with an error. A FIFO of pending requests keeps every client's answers in the order of its
// requests: the memory answers in order, and a refusal waits for the answers before it.
//
// A client that does not take its data blocks all other clients. Therefore a client requests only
// data that it can take without another read.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues

module fs_card_crossbar
  import fs_pkg::*;
#(
  parameter int unsigned READERS = 5,
  parameter int unsigned WRITERS = 4,
  parameter int unsigned FUNCTIONS = 16,
  parameter int unsigned PENDING = 64  // bursts of reads in flight; also writes in flight
) (
  input  logic                        clk_i,
  input  logic                        rst_ni,

  // Clients.
  input  logic [READERS-1:0]          read_valid_i,
  output logic [READERS-1:0]          read_ready_o,
  input  card_read_t [READERS-1:0]    read_i,
  output logic [READERS-1:0]          data_valid_o,
  input  logic [READERS-1:0]          data_ready_i,
  output card_data_t                  data_o,         // for the client whose data_valid_o is set

  input  logic [WRITERS-1:0]          write_valid_i,
  output logic [WRITERS-1:0]          write_ready_o,
  input  card_write_t [WRITERS-1:0]   write_i,
  output card_done_t [WRITERS-1:0]    done_o,

  // The functions' windows, in beats: the first beat, and the first beat after the end.
  input  card_beat_t [FUNCTIONS-1:0]  window_base_i,
  input  card_beat_t [FUNCTIONS-1:0]  window_end_i,

  // The memory.
  output logic                        mem_read_valid_o,
  input  logic                        mem_read_ready_i,
  output card_beat_t                  mem_read_address_o,
  output logic [5:0]                  mem_read_beats_minus_1_o,
  input  logic                        mem_data_valid_i,
  output logic                        mem_data_ready_o,
  input  beat_t                       mem_data_i,
  output logic                        mem_write_valid_o,
  input  logic                        mem_write_ready_i,
  output card_beat_t                  mem_write_address_o,
  output logic [BEAT_BYTES-1:0]       mem_write_strobe_o,
  output beat_t                       mem_write_data_o,
  input  logic                        mem_write_done_i,  // the oldest write has landed

  output logic [1:0]                  faults_o           // one cycle late: a write, a read was
                                                         // refused
);
  localparam int unsigned COUNT_BITS = $clog2(PENDING + 1);

  // ----------------------------------------------------------------------------------------- reads

  typedef struct packed {
    logic [READERS-1:0]  client;  // one-hot
    logic                is_refused;
    logic [5:0]          left_minus_1;  // beats
  } burst_t;

  logic read_valid, read_ready, read_fits;
  logic [READERS-1:0] read_client;
  /* verilator lint_off UNUSEDSIGNAL */  // the gate has checked the owner
  card_read_t read;
  /* verilator lint_on UNUSEDSIGNAL */

  fs_card_gate #(
    .CLIENTS     (READERS),
    .FUNCTIONS   (FUNCTIONS),
    .REQUEST_BITS($bits(card_read_t))
  ) i_read_gate (
    .clk_i, .rst_ni,
    .valid_i   (read_valid_i),
    .ready_o   (read_ready_o),
    .extent_i  (read_i),
    .request_i (read_i),
    .window_base_i, .window_end_i,
    .valid_o   (read_valid),
    .ready_i   (read_ready),
    .fits_o    (read_fits),
    .client_o  (read_client),
    .request_o (read)
  );

  burst_t wait_in, waiting;
  logic wait_space, wait_valid, wait_taken;

  assign mem_read_valid_o = read_valid && read_fits && wait_space;
  assign mem_read_address_o = read.address;
  assign mem_read_beats_minus_1_o = read.beats_minus_1;
  assign read_ready = wait_space && (!read_fits || mem_read_ready_i);
  assign wait_in = '{client: read_client, is_refused: !read_fits, left_minus_1: read.beats_minus_1};

  fs_fifo #(.WIDTH($bits(burst_t)), .DEPTH(PENDING)) i_waits (
    .clk_i, .rst_ni,
    .in_valid_i  (read_valid && read_ready),
    .in_ready_o  (wait_space),
    .in_data_i   (wait_in),
    .out_valid_o (wait_valid),
    .out_ready_i (wait_taken),
    .out_data_o  (waiting),
    .level_o     ()
  );

  // A two-entry FIFO cuts the path from the clients' ready to the memory's ready.
  logic rested_valid, rested_ready;
  beat_t rested;

  fs_fifo #(.WIDTH(BEAT_BITS), .DEPTH(2)) i_data_fifo (
    .clk_i, .rst_ni,
    .in_valid_i  (mem_data_valid_i),
    .in_ready_o  (mem_data_ready_o),
    .in_data_i   (mem_data_i),
    .out_valid_o (rested_valid),
    .out_ready_i (rested_ready),
    .out_data_o  (rested),
    .level_o     ()
  );

  // The burst whose beats go out now.
  logic burst_valid_q, is_last_q;
  burst_t burst_q;
  logic beat_offered, beat_moves, burst_ends;

  assign beat_offered = burst_valid_q && (burst_q.is_refused || rested_valid);
  assign beat_moves = beat_offered && (data_ready_i & burst_q.client) != '0;
  assign burst_ends = beat_moves && is_last_q;
  assign wait_taken = burst_ends || !burst_valid_q;
  assign rested_ready = beat_moves && !burst_q.is_refused;
  assign data_valid_o = beat_offered ? burst_q.client : '0;
  assign data_o = '{error: burst_q.is_refused, last: is_last_q, data: burst_q.is_refused ? '0 : rested};

  always_ff @(posedge clk_i) begin
    if (wait_taken) begin
      burst_q <= waiting;
      is_last_q <= waiting.left_minus_1 == '0;
    end else if (beat_moves) begin
      burst_q.left_minus_1 <= burst_q.left_minus_1 - 1'b1;
      is_last_q <= burst_q.left_minus_1 == 6'd1;
    end
    if (!rst_ni) burst_valid_q <= 1'b0;
    else if (wait_taken) burst_valid_q <= wait_valid;
  end

  // ---------------------------------------------------------------------------------------- writes

  typedef struct packed {
    logic [WRITERS-1:0]  client;  // one-hot
    logic                is_refused;
  } sent_t;

  logic write_valid, write_ready, write_fits;
  logic [WRITERS-1:0] write_client;
  card_read_t [WRITERS-1:0] write_extents;
  /* verilator lint_off UNUSEDSIGNAL */  // the gate has checked the owner
  card_write_t write;
  /* verilator lint_on UNUSEDSIGNAL */

  for (genvar g = 0; g < WRITERS; g++) begin : gen_write_extent
    assign write_extents[g] = '{owner: write_i[g].owner, address: write_i[g].address, beats_minus_1: '0};
  end

  fs_card_gate #(
    .CLIENTS     (WRITERS),
    .FUNCTIONS   (FUNCTIONS),
    .REQUEST_BITS($bits(card_write_t))
  ) i_write_gate (
    .clk_i, .rst_ni,
    .valid_i   (write_valid_i),
    .ready_o   (write_ready_o),
    .extent_i  (write_extents),
    .request_i (write_i),
    .window_base_i, .window_end_i,
    .valid_o   (write_valid),
    .ready_i   (write_ready),
    .fits_o    (write_fits),
    .client_o  (write_client),
    .request_o (write)
  );

  sent_t sent_in, sent;
  logic sent_space, sent_valid, sent_answered;

  assign mem_write_valid_o = write_valid && write_fits && sent_space;
  assign mem_write_address_o = write.address;
  assign mem_write_strobe_o = write.strobe;
  assign mem_write_data_o = write.data;
  assign write_ready = sent_space && (!write_fits || mem_write_ready_i);
  assign sent_in = '{client: write_client, is_refused: !write_fits};

  fs_fifo #(.WIDTH($bits(sent_t)), .DEPTH(PENDING)) i_sent (
    .clk_i, .rst_ni,
    .in_valid_i  (write_valid && write_ready),
    .in_ready_o  (sent_space),
    .in_data_i   (sent_in),
    .out_valid_o (sent_valid),
    .out_ready_i (sent_answered),
    .out_data_o  (sent),
    .level_o     ()
  );

  // Writes that have landed, but whose answers wait for earlier answers.
  logic [COUNT_BITS-1:0] landed_q;
  logic counted;

  assign sent_answered = sent_valid && (sent.is_refused || landed_q != '0);
  assign counted = sent_answered && !sent.is_refused;
  for (genvar g = 0; g < WRITERS; g++) begin : gen_done
    assign done_o[g] = '{valid: sent_answered && sent.client[g], error: sent.is_refused};
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) landed_q <= '0;
    else if (mem_write_done_i != counted) landed_q <= counted ? landed_q - 1'b1 : landed_q + 1'b1;
  end

  always_ff @(posedge clk_i) begin
    faults_o[1] <= rst_ni && write_valid && write_ready && !write_fits;
    faults_o[0] <= rst_ni && read_valid && read_ready && !read_fits;
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni)
                   mem_write_done_i |-> landed_q < COUNT_BITS'(PENDING))
  else $error("more writes landed than were sent");
endmodule
