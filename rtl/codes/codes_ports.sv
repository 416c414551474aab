// The engine's ports to card memory, shared by its units and the loader.
//
// Reads are arbitrated round robin, burst by burst. A queue keeps the client of each burst, and the
// burst's address, until its data come. Writes: a granted unit keeps the grant while it has beats,
// up to 64, so that the memory changes rows less often. When a unit is put into reset, the ports
// still receive all requested data and complete all sent writes.

module codes_ports
  import fs_pkg::*;
#(
  parameter int unsigned UNITS = 1,
  parameter int unsigned BURSTS = 64,  // reads in flight
  localparam int unsigned CLIENTS = UNITS + 1  // the loader is the last
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  function_t                  owner_i,  // changes only while idle_o is set

  input  logic [CLIENTS-1:0]         read_valid_i,
  output logic [CLIENTS-1:0]         read_ready_o,
  input  card_beat_t                 read_address_i [CLIENTS],
  input  logic [5:0]                 read_beats_minus_1_i [CLIENTS],
  output logic [CLIENTS-1:0]         data_valid_o,

  input  logic [UNITS-1:0]           write_valid_i,
  output logic [UNITS-1:0]           write_ready_o,
  input  card_beat_t                 write_address_i [UNITS],
  input  beat_t                      write_data_i [UNITS],

  output logic                       idle_o,           // nothing is in flight
  output logic                       read_error_o,     // valid together with the data
  output card_beat_t                 read_error_at_o,  // first beat of the burst
  output logic                       write_error_o,
  output logic                       read_beat_o,      // one beat has arrived
  output logic                       write_beat_o,     // one beat has been sent

  output logic                       card_read_valid_o,
  input  logic                       card_read_ready_i,
  output card_read_t                 card_read_o,
  input  logic                       card_data_valid_i,
  /* verilator lint_off UNUSEDSIGNAL */  // the data go directly to the clients
  input  card_data_t                 card_data_i,
  /* verilator lint_on UNUSEDSIGNAL */
  output logic                       card_write_valid_o,
  input  logic                       card_write_ready_i,
  output card_write_t                card_write_o,
  input  card_done_t                 card_done_i
);
  localparam int unsigned CLIENT_BITS = $clog2(CLIENTS);
  localparam int unsigned UNIT_BITS = (UNITS > 1) ? $clog2(UNITS) : 1;
  localparam int unsigned WRITES_BITS = 10;  // bits of the count of writes in flight

  // Reads: round robin; the first client after the last one.
  logic [CLIENT_BITS-1:0] reader_q, reader;
  logic read_any, read_go;
  always_comb begin
    reader = reader_q;
    read_any = 1'b0;
    for (int unsigned i = 0; i < CLIENTS; i++) begin
      if (!read_any && read_valid_i[(32'(reader_q) + 1 + i) % CLIENTS]) begin
        reader = CLIENT_BITS'((32'(reader_q) + 1 + i) % CLIENTS);
        read_any = 1'b1;
      end
    end
  end

  logic read_ready, order_ready, order_valid;
  logic [CLIENT_BITS-1:0] order_client;
  logic [$clog2(BURSTS+1)-1:0] order_level;
  logic [1:0] read_level;
  card_read_t read;
  assign read = '{
    owner: owner_i,
    address: read_address_i[reader],
    beats_minus_1: read_beats_minus_1_i[reader]
  };
  assign read_go = read_any && read_ready && order_ready;
  always_comb begin
    read_ready_o = '0;
    read_ready_o[reader] = read_ready && order_ready;
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) reader_q <= '0;
    else if (read_go) reader_q <= reader;
  end

  fs_fifo #(
    .WIDTH($bits(card_read_t)),
    .DEPTH(2)
  ) i_reads (
    .clk_i,
    .rst_ni,
    .in_valid_i (read_any && order_ready),
    .in_ready_o (read_ready),
    .in_data_i  (read),
    .out_valid_o(card_read_valid_o),
    .out_ready_i(card_read_ready_i),
    .out_data_o (card_read_o),
    .level_o    (read_level)
  );

  fs_fifo #(
    .WIDTH(CLIENT_BITS + CARD_BEAT_BITS),
    .DEPTH(BURSTS)
  ) i_order (
    .clk_i,
    .rst_ni,
    .in_valid_i (read_any && read_ready),
    .in_ready_o (order_ready),
    .in_data_i  ({reader, read_address_i[reader]}),
    .out_valid_o(order_valid),
    .out_ready_i(card_data_valid_i && card_data_i.last),
    .out_data_o ({order_client, read_error_at_o}),
    .level_o    (order_level)
  );

  always_comb begin
    data_valid_o = '0;
    data_valid_o[order_client] = card_data_valid_i;
  end
  assign read_beat_o = card_data_valid_i;
  assign read_error_o = card_data_valid_i && card_data_i.error;

  assert property (@(posedge clk_i) disable iff (!rst_ni) card_data_valid_i |-> order_valid)
  else $error("data that were not asked for");

  // Writes.
  logic [UNIT_BITS-1:0] writer_q, writer;
  logic [5:0] grant_beats_q;  // beats of this grant
  logic write_any, write_ready, may_write, write_go;
  logic [WRITES_BITS-1:0] writes_q;
  always_comb begin
    writer = writer_q;
    write_any = write_valid_i[writer_q] && grant_beats_q != '1;
    for (int unsigned i = 0; i < UNITS; i++) begin
      if (!write_any && write_valid_i[(32'(writer_q) + 1 + i) % UNITS]) begin
        writer = UNIT_BITS'((32'(writer_q) + 1 + i) % UNITS);
        write_any = 1'b1;
      end
    end
  end
  assign may_write = writes_q != '1;
  assign write_go = write_any && write_ready && may_write;
  assign write_beat_o = write_go;
  always_comb begin
    write_ready_o = '0;
    write_ready_o[writer] = write_ready && may_write;
  end

  card_write_t write;
  logic [1:0] write_level;
  assign write = '{
    owner: owner_i,
    address: write_address_i[writer],
    strobe: '1,
    data: write_data_i[writer]
  };

  fs_fifo #(
    .WIDTH($bits(card_write_t)),
    .DEPTH(2)
  ) i_writes (
    .clk_i,
    .rst_ni,
    .in_valid_i (write_any && may_write),
    .in_ready_o (write_ready),
    .in_data_i  (write),
    .out_valid_o(card_write_valid_o),
    .out_ready_i(card_write_ready_i),
    .out_data_o (card_write_o),
    .level_o    (write_level)
  );

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      writer_q <= '0;
      grant_beats_q <= '0;
      writes_q <= '0;
    end else begin
      if (write_go) begin
        writer_q <= writer;
        grant_beats_q <= (writer == writer_q && grant_beats_q != '1) ? grant_beats_q + 1'b1 : '0;
      end
      if (write_go != card_done_i.valid) writes_q <= write_go ? writes_q + 1'b1 : writes_q - 1'b1;
    end
  end
  assign write_error_o = card_done_i.valid && card_done_i.error;

  assign idle_o = order_level == '0 && writes_q == '0;

  assert property (@(posedge clk_i) disable iff (!rst_ni)
                   (order_level == '0) |-> (read_level == '0))
  else $error("a read request waits that has no entry in the order queue");
  assert property (@(posedge clk_i) disable iff (!rst_ni)
                   WRITES_BITS'(write_level) <= writes_q)
  else $error("a write waits that was not counted");
endmodule
