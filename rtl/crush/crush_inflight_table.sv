// The table of the jobs (placements) in flight: the mappings and rows that each job still waits
// for, and its errors. A job ends when crush_inputs has used all of its inputs and every row has
// landed. Then the module offers the job's answer.
//
// **Time.** Jobs run in the order in which they came, and later jobs get only the capacity that the
// first one leaves. So the module counts cycles only for the oldest job, from when it becomes the
// oldest. When that job has used MAX_CYCLES, the module stops the job: crush_inputs starts no more
// of its mappings, crush_rule_engine ends those that have begun, and the module answers the job
// like other jobs.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module crush_inflight_table
  import crush_pe_pkg::*;
#(
  parameter int unsigned ROWS = 64,  // most mappings and rows in flight
  parameter int unsigned MAX_CYCLES = fs_regs_pkg::MAX_OPERATION_CYCLES
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,

  input  logic                     add_i,        // only while has_room_o is set
  output logic                     has_room_o,
  output job_index_t               add_index_o,  // index for a new job
  input  job_t                     add_job_i,
  input  logic [15:0]              add_tag_i,
  input  fs_pkg::card_beat_t       add_source_i,
  input  fs_pkg::card_beat_t       add_destination_i,
  input  logic [29:0]              add_inputs_i,
  output job_t [JOBS-1:0]          jobs_o,
  output logic [JOBS-1:0]          stopped_o,    // jobs that have used all their cycles
  output logic                     is_empty_o,

  // Events of a job.
  input  logic                     started_i,    // a mapping has started
  input  job_index_t               started_job_i,
  input  logic                     end_i,        // the end of the inputs
  input  logic                     fault_i,      // reading the inputs failed
  input  job_index_t               used_job_i,   // the job of end_i and fault_i
  input  logic                     landed_i,     // a row has landed
  input  logic                     landed_error_i,
  input  job_index_t               landed_job_i,
  input  logic                     bad_i,        // a mapping has failed
  input  logic                     bad_draw_i,   // because a kernel was missing
  input  job_index_t               bad_job_i,

  output logic                     answer_valid_o,
  input  logic                     answer_ready_i,
  output fs_pkg::engine_answer_t   answer_o
);
  localparam int unsigned ROWS_BITS = $clog2(ROWS + 1);
  localparam int unsigned CYCLES_BITS = $clog2(MAX_CYCLES + 1);

  if (MAX_CYCLES == 0) begin : gen_max_cycles_check
    $error("MAX_CYCLES must be at least 1");
  end

  typedef struct packed {
    logic [15:0]           tag;
    logic [29:0]           inputs;
    fs_pkg::card_beat_t    source;
    fs_pkg::card_beat_t    destination;
    logic                  has_ended;     // all inputs have been used
    logic [ROWS_BITS-1:0]  rows;          // mappings and rows in flight
    logic                  read_fault, write_fault, bad_map, missing_kernel;
  } progress_t;

  logic [JOBS-1:0] busy_q, is_done;
  job_t [JOBS-1:0] jobs_q;
  progress_t [JOBS-1:0] progress_q;

  assign jobs_o = jobs_q;
  assign is_empty_o = busy_q == '0;
  assign has_room_o = busy_q != '1;
  always_comb begin
    add_index_o = '0;
    for (int unsigned i = JOBS; i > 0; i--) if (!busy_q[i-1]) add_index_o = job_index_t'(i - 1);
  end

  // The oldest job, and the cycles that it may still take. In the cycle after another job has
  // become the oldest, no job can run out of cycles.
  logic [JOBS-1:0][JOBS-1:0] older_q;  // per job: the jobs that were in flight when it came
  logic [JOBS-1:0] is_oldest, charged_q, stopped_q;
  logic [CYCLES_BITS-1:0] cycles_left_q;
  logic used_up_q;
  assign stopped_o = stopped_q;
  always_comb begin
    for (int unsigned i = 0; i < JOBS; i++) is_oldest[i] = busy_q[i] && older_q[i] == '0;
  end
  always_ff @(posedge clk_i) begin
    charged_q <= is_oldest;
    if (is_oldest != charged_q) cycles_left_q <= CYCLES_BITS'(MAX_CYCLES);
    else if (cycles_left_q != '0) cycles_left_q <= cycles_left_q - 1'b1;
    used_up_q <= is_oldest == charged_q && cycles_left_q == '0;
  end

  job_index_t done_index;
  always_comb begin
    done_index = '0;
    for (int unsigned i = JOBS; i > 0; i--) begin
      is_done[i-1] = busy_q[i-1] && progress_q[i-1].has_ended && progress_q[i-1].rows == '0;
      if (is_done[i-1]) done_index = job_index_t'(i - 1);
    end
  end

  // An offered answer does not change, even if other jobs end meanwhile.
  progress_t done;
  logic answers;
  assign done = progress_q[done_index];
  assign answers = is_done != '0 && (!answer_valid_o || answer_ready_i);
  always_ff @(posedge clk_i) begin
    if (answers) begin
      answer_o.tag <= done.tag;
      answer_o.result <= 64'(done.inputs);
      answer_o.detail <= '0;
      answer_o.status <= fs_regs_pkg::STATUS_OK;
      if (done.read_fault || done.write_fault) begin
        answer_o.status <= fs_regs_pkg::STATUS_CARD_FAULT;
        answer_o.result <= '0;
        answer_o.detail <= {24'd0, done.read_fault ? done.source : done.destination, 6'd0};
      end else if (done.missing_kernel || done.bad_map) begin
        answer_o.status <= done.missing_kernel ? fs_regs_pkg::STATUS_NOT_LOADED
                                               : fs_regs_pkg::STATUS_BAD_IMAGE;
        answer_o.result <= '0;
      end else if (stopped_q[done_index]) begin
        answer_o.status <= fs_regs_pkg::STATUS_TOO_LONG;
        answer_o.result <= '0;
      end
    end
    if (!rst_ni) answer_valid_o <= 1'b0;
    else if (answers) answer_valid_o <= 1'b1;
    else if (answer_ready_i) answer_valid_o <= 1'b0;
  end

  for (genvar i = 0; i < JOBS; i++) begin : gen_job
    logic is_added, starts, lands;
    assign is_added = add_i && add_index_o == job_index_t'(i);
    assign starts = started_i && started_job_i == job_index_t'(i);
    assign lands = landed_i && landed_job_i == job_index_t'(i);
    always_ff @(posedge clk_i) begin
      if (is_added) begin
        jobs_q[i] <= add_job_i;
        progress_q[i] <= '{
          tag: add_tag_i,
          inputs: add_inputs_i,
          source: add_source_i,
          destination: add_destination_i,
          default: '0
        };
      end else begin
        if (end_i && used_job_i == job_index_t'(i)) progress_q[i].has_ended <= 1'b1;
        if (fault_i && used_job_i == job_index_t'(i)) progress_q[i].read_fault <= 1'b1;
        if (lands && landed_error_i) progress_q[i].write_fault <= 1'b1;
        if (bad_i && bad_job_i == job_index_t'(i)) begin
          progress_q[i].missing_kernel <= progress_q[i].missing_kernel || bad_draw_i;
          progress_q[i].bad_map <= 1'b1;
        end
        if (starts != lands) begin
          progress_q[i].rows <= starts ? progress_q[i].rows + 1'b1 : progress_q[i].rows - 1'b1;
        end
      end
      older_q[i] <= is_added ? busy_q : older_q[i] & busy_q;
      if (is_added) stopped_q[i] <= 1'b0;
      else if (used_up_q && charged_q[i] && busy_q[i] && !is_done[i]) stopped_q[i] <= 1'b1;
      if (!rst_ni) busy_q[i] <= 1'b0;
      else if (is_added) busy_q[i] <= 1'b1;
      else if (answers && done_index == job_index_t'(i)) busy_q[i] <= 1'b0;
    end

    assert property (@(posedge clk_i) disable iff (!rst_ni)
                     !(lands && !starts) || progress_q[i].rows != '0)
    else $error("more rows have landed than were started");
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) $onehot0(is_oldest))
  else $error("two jobs are the oldest");
endmodule
