// The card memory's clients, in front of its one port; and the guard of the functions' windows.
//
// Reads and writes are independent of each other. On each side a round robin picks a client; the
// guard looks up the window of the function that the request names (one stage) and compares (the
// next). What is inside goes to the memory. What is not never does: a refused read gets its number of error beats (of zeros), a
// refused write is answered with an error. A list of who waits for what keeps every client's answers
// in the order of its requests: the memory answers in order, and refusals wait for their turn.
//
// A client that does not take its data holds up all the others. Clients therefore ask only for what
// they will take without waiting for anything that itself needs a read.

/* verilator lint_off PINCONNECTEMPTY */  // queues whose level nobody needs

module fs_card_crossbar
  import fs_pkg::*;
#(
  parameter int unsigned READERS = 5,
  parameter int unsigned WRITERS = 4,
  parameter int unsigned FUNCTIONS = 16,
  parameter int unsigned PENDING = 64  // bursts of reads, and writes, under way
) (
  input  logic                        clk_i,
  input  logic                        rst_ni,

  // Clients.
  input  logic [READERS-1:0]          read_valid_i,
  output logic [READERS-1:0]          read_ready_o,
  input  card_read_t [READERS-1:0]    read_i,
  output logic [READERS-1:0]          data_valid_o,
  input  logic [READERS-1:0]          data_ready_i,
  output card_data_t                  data_o,         // for the one whose data_valid_o is set

  input  logic [WRITERS-1:0]          write_valid_i,
  output logic [WRITERS-1:0]          write_ready_o,
  input  card_write_t [WRITERS-1:0]   write_i,
  output card_done_t [WRITERS-1:0]    done_o,

  // The functions' windows, in beats: first, and first past the end.
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

  output logic [1:0]                  faults_o           // refused in this cycle: a write, a read
);
  localparam int unsigned READER_BITS = (READERS > 1) ? $clog2(READERS) : 1;
  localparam int unsigned WRITER_BITS = (WRITERS > 1) ? $clog2(WRITERS) : 1;
  localparam int unsigned FUNCTION_BITS = (FUNCTIONS > 1) ? $clog2(FUNCTIONS) : 1;
  localparam int unsigned COUNT_BITS = $clog2(PENDING + 1);

  if (FUNCTIONS > 16) begin : gen_functions_check
    $error("function_t names at most 16 functions");
  end

  typedef struct packed {
    card_beat_t  base;
    card_beat_t  stop;
  } window_t;

  // A function that does not exist owns nothing.
  function automatic window_t window_of(input function_t owner);
    if (32'(owner) >= FUNCTIONS) return '0;
    return '{base: window_base_i[FUNCTION_BITS'(owner)], stop: window_end_i[FUNCTION_BITS'(owner)]};
  endfunction

  function automatic logic is_inside(
    input window_t window, input card_beat_t address, input logic [5:0] beats_minus_1
  );
    logic [CARD_BEAT_BITS:0] last;
    last = {1'b0, address} + (CARD_BEAT_BITS + 1)'(beats_minus_1);
    return address >= window.base && last < {1'b0, window.stop};
  endfunction

  // ------------------------------------------------------------------------------------------ reads

  typedef struct packed {
    logic                    fits;
    logic [READER_BITS-1:0]  client;
    card_read_t              request;
  } read_entry_t;

  typedef struct packed {
    logic [READER_BITS-1:0]  client;
    logic                    is_refused;
    logic [5:0]              beats_minus_1;
  } read_wait_t;

  logic read_chosen, read_taken;
  logic [READER_BITS-1:0] read_client;
  read_entry_t read_checked, read_head;
  logic read_head_valid, read_head_ready;
  read_wait_t read_wait_in, read_wait;
  logic read_wait_space, read_waiting, read_wait_done;

  fs_arbiter #(.COUNT(READERS)) i_read_arbiter (
    .clk_i, .rst_ni,
    .request_i (read_valid_i),
    .valid_o   (read_chosen),
    .index_o   (read_client),
    .served_i  (read_taken)
  );

  logic read_looked_valid_q, read_looked_ready;
  logic [READER_BITS-1:0] read_looked_client_q;
  card_read_t read_looked_q;
  window_t read_window_q;

  assign read_taken = read_chosen && (!read_looked_valid_q || read_looked_ready);
  for (genvar g = 0; g < READERS; g++) begin : gen_read_ready
    assign read_ready_o[g] = read_taken && read_client == READER_BITS'(g);
  end

  always_ff @(posedge clk_i) begin
    if (read_taken) begin
      read_looked_client_q <= read_client;
      read_looked_q <= read_i[read_client];
      read_window_q <= window_of(read_i[read_client].owner);
    end
    if (!rst_ni) read_looked_valid_q <= 1'b0;
    else if (read_taken || read_looked_ready) read_looked_valid_q <= read_taken;
  end

  assign read_checked = '{
    fits: is_inside(read_window_q, read_looked_q.address, read_looked_q.beats_minus_1),
    client: read_looked_client_q,
    request: read_looked_q
  };

  fs_fifo #(.WIDTH($bits(read_entry_t)), .DEPTH(2)) i_read_fifo (
    .clk_i, .rst_ni,
    .in_valid_i  (read_looked_valid_q),
    .in_ready_o  (read_looked_ready),
    .in_data_i   (read_checked),
    .out_valid_o (read_head_valid),
    .out_ready_i (read_head_ready),
    .out_data_o  (read_head),
    .level_o     ()
  );

  assign mem_read_valid_o = read_head_valid && read_head.fits && read_wait_space;
  assign mem_read_address_o = read_head.request.address;
  assign mem_read_beats_minus_1_o = read_head.request.beats_minus_1;
  assign read_head_ready = read_wait_space && (!read_head.fits || mem_read_ready_i);

  assign read_wait_in = '{
    client: read_head.client, is_refused: !read_head.fits, beats_minus_1: read_head.request.beats_minus_1
  };

  fs_fifo #(.WIDTH($bits(read_wait_t)), .DEPTH(PENDING)) i_read_waits (
    .clk_i, .rst_ni,
    .in_valid_i  (read_head_valid && read_head_ready),
    .in_ready_o  (read_wait_space),
    .in_data_i   (read_wait_in),
    .out_valid_o (read_waiting),
    .out_ready_i (read_wait_done),
    .out_data_o  (read_wait),
    .level_o     ()
  );

  // Data from the memory rests here, so that ready does not run through from the clients.
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

  logic [5:0] beat_q;  // of the burst at the head of the waits
  logic beat_offered, beat_moves, beat_is_last;

  assign beat_is_last = beat_q == read_wait.beats_minus_1;
  assign beat_offered = read_waiting && (read_wait.is_refused || rested_valid);
  assign beat_moves = beat_offered && data_ready_i[read_wait.client];
  assign rested_ready = beat_moves && !read_wait.is_refused;
  assign read_wait_done = beat_moves && beat_is_last;
  assign data_o = '{
    error: read_wait.is_refused, last: beat_is_last, data: read_wait.is_refused ? '0 : rested
  };
  for (genvar g = 0; g < READERS; g++) begin : gen_data_valid
    assign data_valid_o[g] = beat_offered && read_wait.client == READER_BITS'(g);
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) beat_q <= '0;
    else if (beat_moves) beat_q <= beat_is_last ? '0 : beat_q + 1'b1;
  end

  // ----------------------------------------------------------------------------------------- writes

  typedef struct packed {
    logic                    fits;
    logic [WRITER_BITS-1:0]  client;
    card_write_t             request;
  } write_entry_t;

  typedef struct packed {
    logic [WRITER_BITS-1:0]  client;
    logic                    is_refused;
  } write_wait_t;

  logic write_chosen, write_taken;
  logic [WRITER_BITS-1:0] write_client;
  write_entry_t write_checked, write_head;
  logic write_head_valid, write_head_ready;
  write_wait_t write_wait_in, write_wait;
  logic write_wait_space, write_waiting, write_answered;

  fs_arbiter #(.COUNT(WRITERS)) i_write_arbiter (
    .clk_i, .rst_ni,
    .request_i (write_valid_i),
    .valid_o   (write_chosen),
    .index_o   (write_client),
    .served_i  (write_taken)
  );

  logic write_looked_valid_q, write_looked_ready;
  logic [WRITER_BITS-1:0] write_looked_client_q;
  card_write_t write_looked_q;
  window_t write_window_q;

  assign write_taken = write_chosen && (!write_looked_valid_q || write_looked_ready);
  for (genvar g = 0; g < WRITERS; g++) begin : gen_write_ready
    assign write_ready_o[g] = write_taken && write_client == WRITER_BITS'(g);
  end

  always_ff @(posedge clk_i) begin
    if (write_taken) begin
      write_looked_client_q <= write_client;
      write_looked_q <= write_i[write_client];
      write_window_q <= window_of(write_i[write_client].owner);
    end
    if (!rst_ni) write_looked_valid_q <= 1'b0;
    else if (write_taken || write_looked_ready) write_looked_valid_q <= write_taken;
  end

  assign write_checked = '{
    fits: is_inside(write_window_q, write_looked_q.address, 6'd0),
    client: write_looked_client_q,
    request: write_looked_q
  };

  fs_fifo #(.WIDTH($bits(write_entry_t)), .DEPTH(2)) i_write_fifo (
    .clk_i, .rst_ni,
    .in_valid_i  (write_looked_valid_q),
    .in_ready_o  (write_looked_ready),
    .in_data_i   (write_checked),
    .out_valid_o (write_head_valid),
    .out_ready_i (write_head_ready),
    .out_data_o  (write_head),
    .level_o     ()
  );

  assign mem_write_valid_o = write_head_valid && write_head.fits && write_wait_space;
  assign mem_write_address_o = write_head.request.address;
  assign mem_write_strobe_o = write_head.request.strobe;
  assign mem_write_data_o = write_head.request.data;
  assign write_head_ready = write_wait_space && (!write_head.fits || mem_write_ready_i);
  assign write_wait_in = '{client: write_head.client, is_refused: !write_head.fits};

  fs_fifo #(.WIDTH($bits(write_wait_t)), .DEPTH(PENDING)) i_write_waits (
    .clk_i, .rst_ni,
    .in_valid_i  (write_head_valid && write_head_ready),
    .in_ready_o  (write_wait_space),
    .in_data_i   (write_wait_in),
    .out_valid_o (write_waiting),
    .out_ready_i (write_answered),
    .out_data_o  (write_wait),
    .level_o     ()
  );

  // Writes that have landed and whose turn has not come.
  logic [COUNT_BITS-1:0] landed_q;
  logic write_landed;

  assign write_landed = landed_q != '0;
  assign write_answered = write_waiting && (write_wait.is_refused || write_landed);
  for (genvar g = 0; g < WRITERS; g++) begin : gen_done
    assign done_o[g] = '{
      valid: write_answered && write_wait.client == WRITER_BITS'(g), error: write_wait.is_refused
    };
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) landed_q <= '0;
    else landed_q <= landed_q + COUNT_BITS'(mem_write_done_i)
                   - COUNT_BITS'(write_answered && !write_wait.is_refused);
  end

  assign faults_o = {write_head_valid && write_head_ready && !write_head.fits,
                     read_head_valid && read_head_ready && !read_head.fits};

  assert property (@(posedge clk_i) disable iff (!rst_ni) mem_write_done_i |-> landed_q < COUNT_BITS'(PENDING))
  else $error("more writes landed than were sent");
endmodule
