// Types inside the processing element (crush_pe).

/* verilator lint_off UNUSEDPARAM */  // no unit uses the whole package

package crush_pe_pkg;
  localparam int unsigned ROW_ITEMS = fs_regs_pkg::MAX_WIDTH;  // items of a vector
  localparam int unsigned JOBS = 4;         // PLACE commands in flight
  localparam int unsigned MAX_LEVELS = 64;  // draws of one descent; more means a cycle in the map

  typedef logic [$clog2(JOBS)-1:0] job_index_t;
  typedef logic [ROW_ITEMS-1:0][31:0] row_t;
  typedef logic [ROW_ITEMS-1:0] mask_t;  // one bit per position of a row

  // Constants of a context while it works on a mapping.
  typedef struct packed {
    job_index_t           job;
    logic [3:0]           width;  // number of wanted items
    fs_pkg::card_beat_t   row;    // address of the result
    logic [31:0]          x;
  } mapping_t;

  // Parameters that all mappings of a command share.
  typedef struct packed {
    fs_pkg::function_t    owner;
    logic [3:0]           width;
    logic [15:0]          first_step;
    logic [15:0]          steps;
  } job_t;

  // The memory that a command reads: inputs, or an image.
  typedef struct packed {
    logic                 is_image;
    fs_pkg::function_t    owner;
    fs_pkg::card_beat_t   source;
    logic [26:0]          beats;
    // Inputs
    job_index_t           job;
    logic [3:0]           width;
    fs_pkg::card_beat_t   row;     // address of the first result
    logic [29:0]          inputs;
  } transfer_t;

  // The state of a context between two events.
  //
  // A context has three vectors: w is the input of the current choose step, o holds the items that
  // the step has chosen so far, and c holds the leaves of o. They lie in three memories, which
  // exchange their roles after every choose step. Masks say which positions hold an item; the
  // others are ITEM_NONE. `pos` and `base` count from the start of a vector. The items of the
  // current bucket of w begin at `base`.
  typedef struct packed {
    // The rule
    logic [15:0]  step;             // index of the next step
    logic [15:0]  steps_left;
    logic [15:0]  choose_tries;
    logic [15:0]  leaf_tries;       // as the rule sets it; 0: not set
    logic         vary_r;           // r of leaves starts at r >> vary_shift; else at 0
    logic [4:0]   vary_shift;
    logic         stable;
    // The vectors
    logic [1:0]   w_row, o_row, c_row;
    logic [3:0]   w_count;
    mask_t        w_mask;
    mask_t        w_buckets;        // buckets of w that the step has not done yet
    mask_t        o_mask, c_mask;
    logic [3:0]   result_count;
    mask_t        result_mask;
    // The choose step
    logic         is_indep;
    logic         is_leaf;
    logic [7:0]   kind;
    logic [4:0]   numrep;
    logic [15:0]  leaf_limit;       // tries for a leaf
    // Its current bucket
    logic [15:0]  bucket;           // its index
    logic [3:0]   base;
    logic [3:0]   limit;            // indep: end of the bucket's positions
    mask_t        open;             // indep: open positions
    // The search for one item
    logic [3:0]   pos;
    logic [4:0]   rep;              // firstn: the position's part of r; indep: pos - base
    logic [15:0]  ftotal;           // failures (firstn) or rounds (indep) so far
    logic [20:0]  round_r;          // indep: numrep * ftotal
    logic [5:0]   level;            // draws since the start of the descent
    // The search for its leaf
    logic         in_leaf;
    logic [15:0]  leaf_bucket;
    logic [15:0]  leaf_ftotal;
    logic [22:0]  leaf_r;           // r of the first try
  } context_t;

  // The reason for a pass through the rule engine.
  typedef enum logic [2:0] {
    EVENT_NEW,     // a mapping begins
    EVENT_STEP,    // the next step of the rule
    EVENT_BLOCK,   // the next bucket of the choose step
    EVENT_CHOSEN,  // a draw's answer
    EVENT_TESTED   // the hash that decides whether a device is out has come
  } event_e;

  typedef struct packed {
    event_e              kind;
    crush_pkg::tag_t     index;   // index of the context
    logic                is_out;  // TESTED
    crush_pkg::chosen_t  chosen;  // CHOSEN
    logic [15:0]         step;    // NEW, STEP: index of the step
  } event_t;

  // What the rule engine does about an event.
  typedef enum logic [3:0] {
    DECISION_STEP,     // do this step
    DECISION_END,      // the rule has no more steps
    DECISION_BLOCK,    // begin with the next bucket of w
    DECISION_CHOSEN,   // no bucket is left: the choose step ends
    DECISION_DESCEND,  // a bucket on the path: draw in it
    DECISION_LEAF,     // a bucket of the wanted type: search a leaf below it
    DECISION_TEST,     // a device that may be out
    DECISION_TAKE,     // an item to take
    DECISION_FAIL,     // collision, device that is out, or empty bucket
    DECISION_NOWHERE,  // a device instead of the wanted bucket
    DECISION_BAD,      // the map is not sound, or a kernel is missing
    DECISION_STOPPED   // the job has used up its time
  } decision_e;

  // The evaluation of an event (crush_evaluate), for the transition.
  typedef struct packed {
    decision_e    decision;
    logic         leaf_is_item;     // the device just found is its own leaf
    logic         is_last_level;
    // The search
    logic         has_more_tries;   // ftotal + 1 < choose_tries
    logic         has_more_leaf_tries;
    logic         is_last_rep;      // rep + 1 = numrep
    logic         is_last_pos;      // pos + 1 = width
    logic         has_later_open;   // indep: open positions after pos
    logic [3:0]   later_open;
    logic [3:0]   first_open;
    logic         has_other_open;   // indep: open positions except pos
    logic [3:0]   first_other_open;
    logic [22:0]  leaf_r;
    logic [15:0]  item;             // bucket index of the found item
    // Steps
    logic [3:0]   w_first;          // first of w_buckets
    logic [3:0]   block_end;        // indep: end of the positions of the next bucket
    logic         is_nothing;       // the choose step wants no item
    logic [4:0]   numrep;
    logic [4:0]   emitted;          // items of w and of the result together
  } evaluation_t;

  // The next action for a context.
  typedef enum logic [2:0] {
    ACTION_DRAW,        // in the bucket of the search
    ACTION_DRAW_CHILD,  // in the bucket just drawn
    ACTION_TEST,
    ACTION_STEP,
    ACTION_BLOCK,
    ACTION_FINISH
  } action_e;

  function automatic logic is_choose(input logic [7:0] op);
    return op inside {crush_pkg::STEP_CHOOSE_FIRSTN, crush_pkg::STEP_CHOOSE_INDEP,
                      crush_pkg::STEP_CHOOSELEAF_FIRSTN, crush_pkg::STEP_CHOOSELEAF_INDEP};
  endfunction

  // The first position of a mask; 0 if there is none.
  function automatic logic [3:0] first_of(input mask_t mask);
    first_of = '0;
    for (int unsigned i = ROW_ITEMS; i > 0; i--) if (mask[i-1]) first_of = 4'(i - 1);
  endfunction

  // Positions before `end_position`.
  function automatic mask_t below(input logic [3:0] end_position);
    for (int unsigned i = 0; i < ROW_ITEMS; i++) below[i] = 4'(i) < end_position;
  endfunction

  function automatic mask_t only(input logic [3:0] position);
    for (int unsigned i = 0; i < ROW_ITEMS; i++) only[i] = 4'(i) == position;
  endfunction
endpackage
