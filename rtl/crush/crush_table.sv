// A section of the image. Writes take beats of 64 bytes. READS ports read entries by index; an
// entry comes one cycle after its index and stays until the next read.

module crush_table #(
  parameter int unsigned ENTRY_BITS = 64,
  parameter int unsigned ENTRIES = 1024,
  parameter int unsigned READS = 1,
  localparam int unsigned PER_BEAT = fs_pkg::BEAT_BITS / ENTRY_BITS,
  localparam int unsigned BEATS = ENTRIES / PER_BEAT,
  localparam int unsigned BEAT_INDEX_BITS = (BEATS > 1) ? $clog2(BEATS) : 1
) (
  input  logic                         clk_i,

  input  logic                         write_i,
  input  logic [BEAT_INDEX_BITS-1:0]   write_index_i,  // index of the beat
  input  fs_pkg::beat_t                write_data_i,

  input  logic [READS-1:0]             read_i,
  // verilator lint_off UNUSEDSIGNAL
  input  logic [READS-1:0][15:0]       index_i,  // only as many bits are used as there are entries
  // verilator lint_on UNUSEDSIGNAL
  output logic [READS-1:0][ENTRY_BITS-1:0] entry_o
);
  localparam int unsigned LOW_BITS = $clog2(PER_BEAT);

  if (fs_pkg::BEAT_BITS % ENTRY_BITS != 0 || PER_BEAT < 2) begin : gen_entry_check
    $error("ENTRY_BITS must divide a beat into at least two entries");
  end
  if ((ENTRIES & (ENTRIES - 1)) != 0 || BEATS < 2 || ENTRIES > 65536) begin : gen_size_check
    $error("ENTRIES must be a power of two, of at least two beats, up to 65536");
  end

  fs_pkg::beat_t beats_q [BEATS];
  always_ff @(posedge clk_i) if (write_i) beats_q[write_index_i] <= write_data_i;

  for (genvar port = 0; port < READS; port++) begin : gen_port
    fs_pkg::beat_t beat_q;
    logic [LOW_BITS-1:0] low_q;
    always_ff @(posedge clk_i) begin
      if (read_i[port]) begin
        beat_q <= beats_q[index_i[port][LOW_BITS +: BEAT_INDEX_BITS]];
        low_q <= index_i[port][LOW_BITS-1:0];
      end
    end
    assign entry_o[port] = beat_q[low_q * ENTRY_BITS +: ENTRY_BITS];
  end
endmodule
