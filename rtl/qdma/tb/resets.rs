//! Function-level reset, and the function table: what a reset promises, whatever the host's shell
//! and function 0 do meanwhile.

use fieldstone_fpga::regs::{H2cOp, QueueState, descriptor_flag, register};
use fieldstone_rtl_qdma as designs;

use crate::driver::{DescriptorCase, H2C, Queue, SETS};
use crate::testbench::{Testbench, Timing};
use crate::traffic::{self, Traffic};

const ENABLED: (u64, u64) = (QueueState::Enabled as u64, 0);

/// FAULTS counts what a tenant did wrong. Accesses that a reset cuts off are none.
#[test]
fn a_reset_under_load_is_no_fault() {
    let mut refused = 0;
    for seed in 36..40 {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(seed, 0.2), SETS);
        let mut all: Vec<Traffic> = (0..SETS)
            .map(|number| {
                let mut queue = Queue::new(4, number, [4, 4, 5]);
                queue.enable(&mut tb, true);
                Traffic::new(queue, 1000)
            })
            .collect();
        (0..3000).for_each(|_| traffic::cycle(&mut tb, &mut all));
        tb.reset_functions(1 << 4);
        assert_eq!(tb.read(0, register::FAULTS), 0, "seed {seed}");
        // A fault outside of a reset counts as before.
        let queue = &mut all[0].queue;
        let outside = DescriptorCase::new(H2cOp::Nop as u64, descriptor_flag::COMPLETE);
        queue.enable(&mut tb, false);
        queue.post(&mut tb, H2C, vec![outside]);
        tb.set_host_window(4, 0, 0);
        queue.ring(&mut tb, H2C);
        tb.cycles(2000);
        refused += register::FAULTS_HOST.of(tb.read(0, register::FAULTS));
        assert_ne!(all[0].queue.control(&mut tb), ENABLED);
    }
    assert!(refused > 0, "the fetch and the completion of a descriptor outside");
}
