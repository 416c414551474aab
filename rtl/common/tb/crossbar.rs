//! The crossbar of the card memory: order, data, and the guard.

use std::collections::{BTreeMap, VecDeque};

use fieldstone_rtl_common::CROSSBAR;
use fieldstone_rtl_common::card::Held;
use fieldstone_verilate::bench::{Clock, SeededRng, bits, seeded_rng, set_bits};
use fieldstone_verilate::{Model, Port};
use rand::Rng;

const READERS: usize = 3;
const WRITERS: usize = 2;
const FUNCTIONS: usize = 3;
const BEATS: u64 = 256;
/// Bits of `card_read_t`, `card_write_t` and a beat address.
const READ_BITS: usize = 44;
const WRITE_BITS: usize = 614;
const ADDRESS_BITS: usize = 34;

/// A beat with these first eight bytes; the other bytes repeat them.
fn beat(value: u64) -> [u8; 64] {
    std::array::from_fn(|byte| value.to_le_bytes()[byte % 8])
}

#[derive(Clone, Copy, Debug)]
struct Request {
    owner: usize,
    address: u64,
    beats: u64,
    value: u64,
}

/// The windows of the functions; function 3 does not exist.
const WINDOWS: [(u64, u64); FUNCTIONS] = [(0, BEATS), (64, 128), (128, 129)];

fn is_inside(request: &Request) -> bool {
    WINDOWS.get(request.owner).is_some_and(|&(base, end)| {
        request.address >= base && request.address + request.beats <= end
    })
}

struct Testbench {
    model: Model,
    clock: Clock,
    rng: SeededRng,
    ports: BTreeMap<&'static str, Port>,
    /// The content of the memory, and the content that it must have at the end.
    memory: Vec<u64>,
    /// Bursts that the memory must answer: address and beats left.
    bursts: VecDeque<(u64, u64)>,
    landing: u64,
    faults: u64,
    /// Waiting requests to the memory.
    held: [Held; 2],
}

impl Testbench {
    fn new(seed: u64) -> Self {
        let mut model = Model::new(&CROSSBAR);
        let clock = Clock::reset(&mut model);
        let ports: BTreeMap<&'static str, Port> = model.ports().collect();
        let mut bytes = [
            vec![0; ports["window_base_i"].bits().div_ceil(8) as usize],
            vec![0; ports["window_end_i"].bits().div_ceil(8) as usize],
        ];
        for (function, &(base, end)) in WINDOWS.iter().enumerate() {
            set_bits(&mut bytes[0], function * ADDRESS_BITS, ADDRESS_BITS, base);
            set_bits(&mut bytes[1], function * ADDRESS_BITS, ADDRESS_BITS, end);
        }
        model.set_bytes(ports["window_base_i"], &bytes[0]);
        model.set_bytes(ports["window_end_i"], &bytes[1]);
        let memory = (0..BEATS).map(|address| address * 0x9e37_79b9).collect();
        Self {
            model,
            clock,
            rng: seeded_rng(seed),
            ports,
            memory,
            bursts: VecDeque::new(),
            landing: 0,
            faults: 0,
            held: ["mem_read", "mem_write"].map(Held::new),
        }
    }

    fn set(&mut self, name: &str, value: u64) {
        let port = self.ports[name];
        self.model.set(port, value);
    }

    fn get(&self, name: &str) -> u64 {
        self.model.get(self.ports[name])
    }

    fn request(&mut self) -> Request {
        let owner = self.rng.random_range(0..=FUNCTIONS);
        let beats = self.rng.random_range(1..=64);
        Request { owner, address: self.rng.random_range(0..BEATS), beats, value: self.rng.random() }
    }

    fn drive_memory(&mut self) {
        let ready = u64::from(self.rng.random_bool(0.7));
        self.set("mem_read_ready_i", ready);
        let ready = u64::from(self.rng.random_bool(0.7));
        self.set("mem_write_ready_i", ready);
        let offered = self
            .bursts
            .front()
            .copied()
            .filter(|_| self.get("mem_data_valid_i") == 1 || self.rng.random_bool(0.8));
        self.set("mem_data_valid_i", u64::from(offered.is_some()));
        if let Some((address, _)) = offered {
            let data = beat(self.memory[address as usize]);
            self.model.set_bytes(self.ports["mem_data_i"], &data);
        }
        let landed = self.landing > 0 && self.rng.random_bool(0.5);
        self.landing -= u64::from(landed);
        self.set("mem_write_done_i", u64::from(landed));
    }

    /// The request at a port to the memory: the bytes of these outputs together.
    fn offered(&self, valid: &str, outputs: &[&str]) -> Option<Vec<u8>> {
        let bytes = |name: &&str| self.model.bytes(self.ports[name]).to_vec();
        (self.get(valid) == 1).then(|| outputs.iter().flat_map(bytes).collect())
    }

    /// Also asserts the rule of streams.
    fn sample_memory(&mut self) {
        let cycle = self.clock.cycles;
        let read = ["mem_read_address_o", "mem_read_beats_minus_1_o"];
        let read = self.offered("mem_read_valid_o", &read);
        let write = ["mem_write_address_o", "mem_write_strobe_o", "mem_write_data_o"];
        let write = self.offered("mem_write_valid_o", &write);
        let ready = ["mem_read_ready_i", "mem_write_ready_i"].map(|name| self.get(name) == 1);
        self.held[0].check(read.as_deref(), ready[0], cycle);
        self.held[1].check(write.as_deref(), ready[1], cycle);
        if self.get("mem_data_valid_i") == 1 && self.get("mem_data_ready_o") == 1 {
            let burst = &mut self.bursts[0];
            *burst = (burst.0 + 1, burst.1 - 1);
            if burst.1 == 0 {
                self.bursts.pop_front();
            }
        }
        if self.get("mem_read_valid_o") == 1 && self.get("mem_read_ready_i") == 1 {
            let (address, beats) =
                (self.get("mem_read_address_o"), self.get("mem_read_beats_minus_1_o") + 1);
            assert!(address + beats <= BEATS, "the guard let a read through");
            self.bursts.push_back((address, beats));
        }
        if self.get("mem_write_valid_o") == 1 && self.get("mem_write_ready_i") == 1 {
            let address = self.get("mem_write_address_o") as usize;
            assert_eq!(self.get("mem_write_strobe_o"), u64::MAX);
            self.memory[address] = bits(self.model.bytes(self.ports["mem_write_data_o"]), 0, 64);
            self.landing += 1;
        }
        self.faults += u64::from(self.get("faults_o").count_ones());
    }
}

/// Readers and writers at the same time, with a third of the requests outside their windows. Reads
/// use the lower half and writes the upper half, so the data of reads is known.
#[test]
fn answers_are_right_and_in_order_and_nothing_outside_is_touched() {
    let mut bench = Testbench::new(11);
    let mut read_queues: Vec<VecDeque<Request>> = vec![VecDeque::new(); READERS];
    let mut write_queues: Vec<VecDeque<Request>> = vec![VecDeque::new(); WRITERS];
    let mut expected = bench.memory.clone();
    let mut expected_faults = 0;
    let mut data_due: Vec<VecDeque<(u64, bool, bool)>> = vec![VecDeque::new(); READERS];
    let mut done_due: Vec<VecDeque<bool>> = vec![VecDeque::new(); WRITERS];
    for queue in &mut read_queues {
        for _ in 0..150 {
            let mut request = bench.request();
            request.address %= 128;
            request.beats = request.beats.min(128 - request.address);
            queue.push_back(request);
        }
    }
    // Two writers must not write the same beat, because the order between them is not defined.
    for (writer, queue) in write_queues.iter_mut().enumerate() {
        for _ in 0..300 {
            let mut request = bench.request();
            request.address = 128 + request.address % 64 * 2 + writer as u64;
            request.beats = 1;
            if is_inside(&request) {
                expected[request.address as usize] = request.value;
            }
            queue.push_back(request);
        }
    }
    for request in read_queues.iter().chain(&write_queues).flatten() {
        expected_faults += u64::from(!is_inside(request));
    }
    let mut offered_reads = [false; READERS];
    let mut offered_writes = [false; WRITERS];
    loop {
        let idle = read_queues.iter().all(VecDeque::is_empty)
            && write_queues.iter().all(VecDeque::is_empty)
            && data_due.iter().all(VecDeque::is_empty)
            && done_due.iter().all(VecDeque::is_empty);
        if idle {
            break;
        }
        assert!(bench.clock.cycles < 200_000, "wedged");
        let mut reads = vec![0; (READERS * READ_BITS).div_ceil(8)];
        let mut writes = vec![0; (WRITERS * WRITE_BITS).div_ceil(8)];
        let (mut read_valid, mut write_valid, mut data_ready) = (0u64, 0u64, 0u64);
        for client in 0..READERS {
            offered_reads[client] |= bench.rng.random_bool(0.5);
            if let (true, Some(request)) = (offered_reads[client], read_queues[client].front()) {
                read_valid |= 1 << client;
                let at = client * READ_BITS;
                set_bits(&mut reads, at, 6, request.beats - 1);
                set_bits(&mut reads, at + 6, ADDRESS_BITS, request.address);
                set_bits(&mut reads, at + 40, 4, request.owner as u64);
            }
            data_ready |= u64::from(bench.rng.random_bool(0.8)) << client;
        }
        for client in 0..WRITERS {
            offered_writes[client] |= bench.rng.random_bool(0.5);
            if let (true, Some(request)) = (offered_writes[client], write_queues[client].front()) {
                write_valid |= 1 << client;
                let at = client * WRITE_BITS;
                set_bits(&mut writes, at, 64, request.value);
                set_bits(&mut writes, at + 512, 64, u64::MAX);
                set_bits(&mut writes, at + 576, ADDRESS_BITS, request.address);
                set_bits(&mut writes, at + 610, 4, request.owner as u64);
            }
        }
        bench.set("read_valid_i", read_valid);
        bench.set("write_valid_i", write_valid);
        bench.set("data_ready_i", data_ready);
        bench.model.set_bytes(bench.ports["read_i"], &reads);
        bench.model.set_bytes(bench.ports["write_i"], &writes);
        bench.drive_memory();
        bench.clock.settle(&mut bench.model);
        let (read_ready, write_ready) = (bench.get("read_ready_o"), bench.get("write_ready_o"));
        for client in 0..READERS {
            if read_valid & read_ready & 1 << client != 0 {
                let request = read_queues[client].pop_front().expect("it was offered");
                let inside = is_inside(&request);
                data_due[client].extend((0..request.beats).map(|at| {
                    let value = if inside { expected[(request.address + at) as usize] } else { 0 };
                    (value, !inside, at + 1 == request.beats)
                }));
                offered_reads[client] = false;
            }
        }
        for client in 0..WRITERS {
            if write_valid & write_ready & 1 << client != 0 {
                let request = write_queues[client].pop_front().expect("it was offered");
                done_due[client].push_back(!is_inside(&request));
                offered_writes[client] = false;
            }
        }
        let moved = bench.get("data_valid_o") & data_ready;
        assert!(bench.get("data_valid_o").count_ones() <= 1);
        let data = bench.model.bytes(bench.ports["data_o"]).to_vec();
        for (client, due) in
            data_due.iter_mut().enumerate().filter(|(client, _)| moved >> client & 1 == 1)
        {
            let got = (bits(&data, 0, 64), bits(&data, 513, 1) == 1, bits(&data, 512, 1) == 1);
            assert_eq!(Some(got), due.pop_front(), "reader {client}");
        }
        let done = bench.get("done_o");
        for (client, due) in done_due.iter_mut().enumerate() {
            if done >> (2 * client + 1) & 1 == 1 {
                assert_eq!(Some(done >> (2 * client) & 1 == 1), due.pop_front(), "writer {client}");
            }
        }
        bench.sample_memory();
        bench.clock.rise(&mut bench.model);
    }
    assert_eq!(bench.memory, expected);
    assert_eq!(bench.faults, expected_faults);
    assert!(expected_faults > 100);
}

/// With clients that always request and a memory that is always ready: one beat per cycle each way,
/// for one client alone and for all together, and all clients get equal shares.
#[test]
fn a_beat_per_cycle_each_way() {
    const BURST: u64 = 4;
    const CYCLES: u64 = 1000;
    let request = Request { owner: 0, address: 8, beats: BURST, value: 0 };
    for (asking_reads, asking_writes) in [(0b001, 0b10), (0b111, 0b11)] {
        let mut bench = Testbench::new(12);
        let mut reads = vec![0; (READERS * READ_BITS).div_ceil(8)];
        let mut writes = vec![0; (WRITERS * WRITE_BITS).div_ceil(8)];
        for client in 0..READERS {
            set_bits(&mut reads, client * READ_BITS, 6, request.beats - 1);
            set_bits(&mut reads, client * READ_BITS + 6, ADDRESS_BITS, request.address);
        }
        for client in 0..WRITERS {
            set_bits(&mut writes, client * WRITE_BITS + 576, ADDRESS_BITS, request.address);
        }
        bench.model.set_bytes(bench.ports["read_i"], &reads);
        bench.model.set_bytes(bench.ports["write_i"], &writes);
        bench.set("read_valid_i", asking_reads);
        bench.set("write_valid_i", asking_writes);
        bench.set("data_ready_i", (1 << READERS) - 1);
        bench.set("mem_read_ready_i", 1);
        bench.set("mem_write_ready_i", 1);
        let (mut owed, mut landing) = (0, 0);
        let (mut beats, mut landed) = ([0; READERS], [0; WRITERS]);
        for _ in 0..CYCLES {
            bench.set("mem_data_valid_i", u64::from(owed > 0));
            bench.set("mem_write_done_i", u64::from(landing > 0));
            bench.clock.settle(&mut bench.model);
            owed -= u64::from(owed > 0) & bench.get("mem_data_ready_o");
            owed += BURST * bench.get("mem_read_valid_o");
            landing -= u64::from(landing > 0);
            landing += bench.get("mem_write_valid_o");
            let (data, done) = (bench.get("data_valid_o"), bench.get("done_o"));
            beats.iter_mut().enumerate().for_each(|(client, n)| *n += data >> client & 1);
            landed
                .iter_mut()
                .enumerate()
                .for_each(|(client, n)| *n += done >> (2 * client + 1) & 1);
            bench.clock.rise(&mut bench.model);
        }
        let share = |counts: &[u64], asking: u64| {
            let each = CYCLES / u64::from(asking.count_ones());
            for (client, &count) in counts.iter().enumerate() {
                let due = if asking >> client & 1 == 1 { each } else { 0 };
                assert!(count <= due + BURST && count + 16 >= due, "{client}: {counts:?}");
            }
            assert!(counts.iter().sum::<u64>() + 16 >= CYCLES, "{counts:?}");
        };
        share(&beats, asking_reads);
        share(&landed, asking_writes);
    }
}
