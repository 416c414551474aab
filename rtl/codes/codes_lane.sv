// The buffer of one lane: two banks of BEATS beats. Each bank is a memory with one write and one
// read port.
//
// Fills go to one bank while operations read the other and write scratch to it, so neither waits
// for the other.
//
// Every beat has its owner beside it, the function whose job wrote it, in bits that block RAMs of
// this width have to spare. A beat of another function is not the reader's: read_mine_o says so,
// and the reader takes it as zero. So a change of owner costs nothing. A wipe makes all beats zeros
// of the owner; the engine wipes before the first job, and before a function's first job after its
// reset.

module codes_lane
  import gf_pkg::*;
#(
  parameter int unsigned BEATS = 1024,
  localparam int unsigned BITS = $clog2(BEATS)
) (
  input  logic             clk_i,
  input  fs_pkg::function_t owner_i,  // of the job

  input  logic             fill_valid_i,
  input  logic             fill_bank_i,
  input  logic [BITS-1:0]  fill_address_i,
  input  planes_t          fill_data_i,

  input  logic             scratch_valid_i,
  input  logic             scratch_bank_i,
  input  logic [BITS-1:0]  scratch_address_i,
  input  planes_t          scratch_data_i,

  input  logic             wipe_valid_i,
  input  logic [BITS-1:0]  wipe_address_i,

  input  logic             read_valid_i,
  input  logic             read_bank_i,
  input  logic [BITS-1:0]  read_address_i,
  output planes_t          read_data_o,  // one cycle later
  output logic             read_mine_o   // with the data: the owner's
);
  if (BEATS < 2) begin : gen_beats_check
    $error("a bank has at least 2 beats");
  end

  typedef struct packed {
    fs_pkg::function_t owner;
    planes_t data;
  } owned_t;

  owned_t read_q [2];
  logic bank_q;

  for (genvar b = 0; b < 2; b++) begin : gen_bank
    owned_t beats [BEATS];

    logic fill, scratch;
    assign fill = fill_valid_i && fill_bank_i == 1'(b);
    assign scratch = scratch_valid_i && scratch_bank_i == 1'(b);

    always_ff @(posedge clk_i) begin
      if (wipe_valid_i) beats[wipe_address_i] <= '{owner: owner_i, data: '0};
      else if (fill) beats[fill_address_i] <= '{owner: owner_i, data: fill_data_i};
      else if (scratch) beats[scratch_address_i] <= '{owner: owner_i, data: scratch_data_i};
      if (read_valid_i && read_bank_i == 1'(b)) read_q[b] <= beats[read_address_i];
    end

    assert property (@(posedge clk_i) !(fill && scratch))
    else $error("a bank is filled while it is computed on");
  end

  always_ff @(posedge clk_i) if (read_valid_i) bank_q <= read_bank_i;

  assign read_data_o = read_q[bank_q].data;
  assign read_mine_o = read_q[bank_q].owner == owner_i;
endmodule
