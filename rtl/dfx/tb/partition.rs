//! The partition: each module answers when it is configured, and no draw comes out while the
//! partition is decoupled.
//!
//! `rtl/crush` tests the results of the kernels; here a bucket of one item is enough.

use fieldstone_fpga::regs::ReconfigurableModule;
use fieldstone_rtl_dfx::PARTITION_4;
use fieldstone_verilate::bench::{Clock, bits, seeded_rng, set_bits};
use fieldstone_verilate::{Model, Port};
use rand::Rng;

/// `kernel_beat_t`, from its lowest bits: row, size, bucket, r, x, tag, last, first.
const SIZE_AT: usize = 16;
const TAG_AT: usize = 128;
const TAG_BITS: usize = 30;
const LAST_AT: usize = TAG_AT + TAG_BITS;
const FIRST_AT: usize = LAST_AT + 1;
/// `drawn_t`: position, tag.
const DRAWN_TAG_AT: usize = 16;
/// More cycles than the latency of any kernel.
const PATIENCE: u64 = 60;

struct Testbench {
    model: Model,
    clock: Clock,
    module: Port,
    decouple: Port,
    valid_in: Port,
    beat: Port,
    valid_out: Port,
    drawn: Port,
}

impl Testbench {
    fn new() -> Self {
        let mut model = Model::new(&PARTITION_4);
        let port = |model: &Model, name| model.port(name);
        let (module, decouple) = (port(&model, "module_i"), port(&model, "decouple_i"));
        model.set(decouple, 1);
        let clock = Clock::reset(&mut model);
        let mask = model.port("mask_i");
        model.set(mask, 1);
        Self {
            module,
            decouple,
            valid_in: port(&model, "valid_i"),
            beat: port(&model, "beat_i"),
            valid_out: port(&model, "valid_o"),
            drawn: port(&model, "drawn_o"),
            model,
            clock,
        }
    }

    fn cycle(&mut self) -> Option<u64> {
        self.clock.settle(&mut self.model);
        let tag = bits(self.model.bytes(self.drawn), DRAWN_TAG_AT, TAG_BITS);
        let drawn = self.model.is_set(self.valid_out).then_some(tag);
        self.clock.rise(&mut self.model);
        drawn
    }

    /// Changes the module while the partition is decoupled and in reset, as `dfx_config` does.
    fn configure(&mut self, module: ReconfigurableModule) {
        let reset = self.model.port("rst_ni");
        self.model.set(self.decouple, 1);
        self.model.set(reset, 0);
        self.model.set(self.module, ReconfigurableModule::None as u64);
        for _ in 0..200 {
            assert_eq!(self.cycle(), None, "the decoupler leaks");
        }
        self.model.set(self.module, module as u64);
        self.cycle();
        self.model.set(reset, 1);
        self.model.set(self.decouple, 0);
    }

    /// Draws from a bucket of one item.
    fn draw(&mut self, tag: u64) -> Option<u64> {
        let mut beat = vec![0; self.beat.bits().div_ceil(8) as usize];
        set_bits(&mut beat, SIZE_AT, 16, 1);
        set_bits(&mut beat, TAG_AT, TAG_BITS, tag);
        set_bits(&mut beat, LAST_AT, 1, 1);
        set_bits(&mut beat, FIRST_AT, 1, 1);
        self.model.set_bytes(self.beat, &beat);
        self.model.set(self.valid_in, 1);
        let mut drawn = self.cycle();
        self.model.set(self.valid_in, 0);
        for _ in 0..PATIENCE {
            if let Some(tag) = self.cycle() {
                assert_eq!(drawn, None, "one draw, two answers");
                drawn = Some(tag);
            }
        }
        drawn
    }
}

#[test]
fn the_configured_module_answers_and_a_decoupled_partition_is_silent() {
    let mut bench = Testbench::new();
    assert_eq!(bench.model.port("beat_i").bits() as usize, FIRST_AT + 1);
    let mut rng = seeded_rng(9);
    let modules =
        [ReconfigurableModule::Uniform, ReconfigurableModule::List, ReconfigurableModule::Tree];
    for _ in 0..12 {
        bench.configure(modules[rng.random_range(0..3)]);
        for _ in 0..5 {
            let tag = rng.random_range(0..1 << TAG_BITS);
            assert_eq!(bench.draw(tag), Some(tag));
        }
    }
}
