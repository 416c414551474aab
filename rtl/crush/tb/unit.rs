//! The whole unit: rule engine, draw engine, kernels and memories, with images that the host's
//! compiler made; and the cycles of mappings.
#![cfg(feature = "verilator")]

mod maps;
mod place;

use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};
use fieldstone_fpga::regs::Status;
use fieldstone_rtl_crush as designs;
use fieldstone_verilate::Port;
use place::{Bench, Compiled, PlacementCase};

const IMAGE: u64 = 0;
const INPUTS: u64 = 0x10_0000;
const ROWS: u64 = 0x20_0000;
const END: usize = 0x60_0000;

/// The unit and its card memory.
struct Testbench {
    bench: Bench,
    module: Port,
    busy: Port,
    draws: Port,
    epoch: u64,
}

impl Testbench {
    fn new(seed: u64, stall: f64) -> Self {
        let mut bench = Bench::new(&designs::UNIT, seed, stall);
        bench.memory.bytes.resize(END, 0);
        let port = |name: &str| bench.model.port(name);
        let (module, ready) = (port("rp_module_i"), port("rp_ready_i"));
        let (busy, draws) = (port("rp_busy_o"), port("draws_o"));
        bench.model.set(ready, 1);
        Self { bench, module, busy, draws, epoch: 0 }
    }

    /// Loads the map, and the module that it needs into the partition.
    fn load(&mut self, compiled: &Compiled) {
        self.load_image(compiled.image.bytes(), compiled.module());
    }

    fn load_image(&mut self, image: &[u8], module: Option<u64>) {
        self.bench.model.set(self.module, module.unwrap_or(0));
        self.bench.memory.bytes[IMAGE as usize..][..image.len()].copy_from_slice(image);
        self.epoch += 1;
        self.bench.load(IMAGE, image.len() as u64, self.epoch);
        assert_eq!(self.bench.wait(1, &mut [])[0].status, Status::Ok as u64);
    }

    fn check_rules(&mut self, compiled: &Compiled, most_inputs: usize, what: &str) -> u64 {
        let areas = [INPUTS, ROWS];
        let mappings =
            self.bench.check_rules(compiled, self.epoch, most_inputs, areas, &mut [], what);
        assert!(!self.bench.model.is_set(self.busy), "nothing is in flight");
        mappings
    }

    /// Runs one command with this number of inputs. Returns the cycles from its start to its end,
    /// and the draws.
    fn measure(&mut self, compiled: &Compiled, rule: u64, width: u64, inputs: usize) -> (u64, u64) {
        let (source, destination, length) = (INPUTS, ROWS, 4 * inputs as u64);
        let job = PlacementCase { source, destination, length, epoch: self.epoch, width, rule };
        let xs = self.bench.write_inputs(source, inputs);
        let draws = self.bench.model.get(self.draws);
        self.bench.place(&job);
        let from = self.bench.clock.cycles;
        assert_eq!(self.bench.wait(1, &mut [])[0].status, Status::Ok as u64);
        let cycles = self.bench.clock.cycles - from;
        self.bench.check(compiled, &job, &xs, "measured");
        (cycles, self.bench.model.get(self.draws) - draws)
    }
}

/// Compares random maps until the given number of mappings is reached.
fn random_maps(
    tb: &mut Testbench,
    kinds: Option<AlgorithmKind>,
    mappings: u64,
    most_inputs: usize,
) {
    let mut done = 0;
    for number in 0.. {
        let rng = &mut tb.bench.rng;
        let algorithms = kinds.map_or_else(|| maps::algorithms(rng), |kind| vec![kind]);
        let map = maps::random(rng, &algorithms);
        let reweights = maps::reweights(rng, &map);
        if let Ok(compiled) = Compiled::new(map, None, reweights) {
            tb.load(&compiled);
            done += tb.check_rules(&compiled, most_inputs, &format!("map {number}"));
        }
        if done >= mappings {
            return;
        }
    }
}

#[test]
fn random_maps_give_what_the_cpu_gives() {
    random_maps(&mut Testbench::new(1, 0.0), None, 2_500, 80);
    random_maps(&mut Testbench::new(2, 0.4), None, 1_000, 60);
}

#[test]
fn golden_maps_give_what_the_cpu_gives() {
    let mut tb = Testbench::new(3, 0.1);
    let (mut mappings, mut left_out) = (0, Vec::new());
    for (name, map) in maps::golden() {
        let reweights = maps::reweights(&mut tb.bench.rng, &map);
        let args = map.choose_args_for_pool(0).cloned();
        match Compiled::new(map, args, reweights) {
            Ok(compiled) if compiled.fits_partition() => {
                tb.load(&compiled);
                mappings += tb.check_rules(&compiled, 16, &name);
            }
            Ok(_) => left_out.push(format!("{name}: more than one module")),
            Err(error) => left_out.push(format!("{name}: {error}")),
        }
    }
    println!("{mappings} mappings; left out: {left_out:#?}");
    assert!(mappings > 1000);
}

/// Images with a right checksum and wrong content: placements with them end, and the partition may
/// be swapped whenever no job uses it.
#[test]
fn damaged_images_do_not_delay_other_work() {
    let mut tb = Testbench::new(5, 0.1);
    let map = cluster(AlgorithmKind::Uniform, 2, 3, 5);
    let compiled = Compiled::new(map, None, vec![WEIGHT_ONE; 30]).expect("the map fits");
    let image = compiled.image.bytes().to_vec();
    let with_sum = |mut bytes: Vec<u8>| {
        bytes[60..64].fill(0);
        let sum = fieldstone_accel::crc32c(&bytes);
        bytes[60..64].copy_from_slice(&sum.to_le_bytes());
        bytes
    };

    // All reciprocals are wrong.
    let buckets = u32::from_le_bytes(image[8..12].try_into().expect("4 bytes")) as usize;
    let rows = u32::from_le_bytes(image[12..16].try_into().expect("4 bytes")) as usize;
    let slots = 64 + (16 * buckets).next_multiple_of(64);
    let mut bytes = image.clone();
    for slot in bytes[slots..slots + 256 * rows].chunks_mut(16) {
        slot[8..15].fill(0);
    }
    tb.load_image(&with_sum(bytes), compiled.module());
    tb.bench.write_inputs(INPUTS, 50);
    let job = |tb: &Testbench| PlacementCase {
        source: INPUTS,
        destination: ROWS,
        length: 200,
        epoch: tb.epoch,
        width: 6,
        rule: 1,
    };
    let damaged = job(&tb);
    tb.bench.place(&damaged);
    assert_eq!(tb.bench.wait(1, &mut [])[0].status, Status::NotLoaded as u64);

    // The header names no algorithm of the partition, so a swap does not wait for the placement's
    // end.
    let mut bytes = image.clone();
    bytes[6] &= !(1 << AlgorithmKind::Uniform as u8);
    tb.load_image(&with_sum(bytes), compiled.module());
    let damaged = job(&tb);
    tb.bench.place(&damaged);
    for _ in 0..300 {
        tb.bench.cycle(&mut []);
        assert!(!tb.bench.model.is_set(tb.busy));
    }
    tb.bench.model.set(tb.module, 0);
    assert_eq!(tb.bench.wait(1, &mut [])[0].status, Status::NotLoaded as u64);

    tb.load(&compiled);
    tb.check_rules(&compiled, 60, "after damaged images");
}

/// A map of racks, hosts and devices, with various weights.
fn cluster(algorithm: AlgorithmKind, racks: i32, hosts: i32, osds: i32) -> Map {
    let (host, rack, root) = (TypeId(1), TypeId(2), TypeId(3));
    let weight = |osd: i32| WEIGHT_ONE + (osd as u32 * 7919 % 16) * 0x1000;
    let mut builder = MapBuilder::new();
    let first_host = -2 - racks;
    for number in 0..racks * hosts {
        let items = (number * osds..(number + 1) * osds).map(|osd| (ItemId(osd), weight(osd)));
        builder.bucket(BucketId(first_host - number), host, algorithm, items);
    }
    for number in 0..racks {
        let items = (number * hosts..(number + 1) * hosts)
            .map(|host| (ItemId(first_host - host), weight(host) * osds as u32));
        builder.bucket(BucketId(-2 - number), rack, algorithm, items);
    }
    let items = (0..racks).map(|rack| (ItemId(-2 - rack), weight(rack) * (hosts * osds) as u32));
    builder.bucket(BucketId(-1), root, algorithm, items);
    let take = RuleStep::Take(ItemId(-1));
    let firstn = RuleStep::ChooseleafFirstn { count: 0, kind: host };
    let indep = RuleStep::ChooseleafIndep { count: 0, kind: host };
    builder.rule(RuleId(0), [take, firstn, RuleStep::Emit]);
    builder.rule(RuleId(1), [take, indep, RuleStep::Emit]);
    builder.build().expect("the map is valid")
}

/// The cycles of whole straw2 mappings, alone and in a stream. The bounds are the measured numbers,
/// slightly rounded up.
#[test]
fn a_mapping_takes_this_many_cycles() {
    for (racks, hosts, osds, most_single, most_each) in [(4, 8, 8, 510, 17), (16, 32, 20, 510, 17)]
    {
        let mut tb = Testbench::new(4, 0.0);
        let map = cluster(AlgorithmKind::Straw2, racks, hosts, osds);
        let reweights = vec![WEIGHT_ONE; (racks * hosts * osds) as usize];
        let compiled = Compiled::new(map, None, reweights).expect("the map fits");
        tb.load(&compiled);
        for (rule, width, name) in [(0, 3, "chooseleaf firstn 3"), (1, 6, "chooseleaf indep 6")] {
            let singles = (0..20).map(|_| tb.measure(&compiled, rule, width, 1).0);
            let single = singles.sum::<u64>() / 20;
            let (few, few_draws) = tb.measure(&compiled, rule, width, 100);
            let (many, many_draws) = tb.measure(&compiled, rule, width, 600);
            let each = (many - few) as f64 / 500.0;
            let draws = (many_draws - few_draws) as f64 / 500.0;
            println!(
                "{} OSDs, {name}: {single} cycles alone, {each:.1} in a stream, {draws:.1} draws",
                racks * hosts * osds
            );
            if rule == 0 {
                assert!(single <= most_single && each <= f64::from(most_each), "{single}, {each}");
            }
        }
    }
}

/// `CRUSH_UNIT_MAPPINGS` random placements per algorithm (1,000,000 if it is not set), on maps with
/// only that algorithm.
#[test]
#[ignore = "takes hours"]
fn campaign() {
    let mappings = std::env::var("CRUSH_UNIT_MAPPINGS")
        .map_or(1_000_000, |value| value.parse().expect("a number"));
    for kind in AlgorithmKind::ALL {
        let mut tb = Testbench::new(100 + kind as u64, 0.05);
        random_maps(&mut tb, Some(kind), mappings, 500);
        println!("{}: {mappings} mappings, {} cycles", kind.word(), tb.bench.clock.cycles);
    }
}
