//! What handlers cost: writes through one node whose firmware runs on a core, and the core's
//! counters.
//!
//! The core is alone: nothing else uses its memories, commands are done at once, and instructions
//! are always in the cache. So the numbers are those of a handler without waits, as the network
//! model takes them ([`HandlerCosts`]). That model adds the waits. [`payload_on_cluster`] has
//! several cores, which wait for banks of memory.

use fieldstone_proto::capability::{Capability, MasterKey, Rights};
use fieldstone_proto::ids::{Epoch, SegmentId, VolumeId};

use super::cluster::{CORES, Job, run_together};
use super::engine::{Area, Call, Engine, EngineError, Handler, Run};
use super::hpu::{Hpu, HpuError};
use super::nic::{Nic, Output, Ran};
use super::packet::{Coordinates, DATA_BYTES, Reply, Scheme, Write};
use super::state::{ElementColumn, Extent, Multiply, Settings, SettingsError};
use crate::network::handlers::{Cost, HandlerCosts, Role, Rs};
use crate::riscv::core::Counters;
use crate::riscv::elf::Program;

/// The costs of the handlers in one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The header handler, for a capability that the NIC checks for the first time.
    pub header_new: Cost,
    /// The header handler, for a capability that it remembers.
    pub header: Cost,
    /// The payload handler, for a packet with the asked number of bytes and no headers.
    pub payload: Cost,
    /// The completion handler.
    pub completion: Cost,
}

/// Why there is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No core could be made.
    #[error(transparent)]
    Hpu(#[from] HpuError),
    /// The NIC cannot hold the settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The code does not exist.
    #[error("{0}")]
    Code(String),
    /// A handler did not end as it should.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The node refused the write.
    #[error("the firmware answers a write of its own benchmark with status {0}")]
    Refused(u32),
    /// A handler that should run did not.
    #[error("no {} ran", .0.symbol())]
    NotRun(Handler),
    /// More bytes than a packet has.
    #[error("a packet has at most {DATA_BYTES} bytes of data, not {0}")]
    Bytes(usize),
}

const NODE: u32 = 1;
const CLIENT: u32 = 1000;
const MASTER: MasterKey = MasterKey([7; 16]);
const VOLUME: VolumeId = VolumeId(1);
const EPOCH: Epoch = Epoch(1);
const SEGMENT: SegmentId = SegmentId(1);
/// Packets of each message.
const PACKETS: usize = 3;
/// A node without children.
const STORE: Role = Role::Store { children: 0 };

/// Runs the handlers of a node in `role` on writes whose last packet has `bytes` of data.
///
/// A node of [`Role::Store`] is the first of four; the tree's has two children. A node of
/// [`Role::Data`] has column 0, as good as any; with [`Multiply::Planes`] it has the last column,
/// which costs most. One of [`Role::Parity`] gets the packets of all data nodes; its
/// costs are the mean over them.
///
/// # Errors
/// [`ProfileError`] says what did not work.
pub fn profile(
    program: &Program,
    multiply: Multiply,
    role: Role,
    bytes: usize,
) -> Result<Profile, ProfileError> {
    if bytes == 0 || bytes > DATA_BYTES {
        return Err(ProfileError::Bytes(bytes));
    }
    let context = settings(multiply, role)?.context()?;
    let mut nic = Nic::new(Hpu::new(program, &context)?);
    let column = column(multiply, role);
    let new = run(&mut nic, &writes(role, column, bytes, 0, 0))?;
    let known = run(&mut nic, &writes(role, column, bytes, 1, 0))?;
    let first = new.iter().find(|ran| ran.handler == Handler::Header).copied();
    let payloads = known.iter().filter(|ran| ran.handler == Handler::Payload);
    let lasts: Vec<Ran> = payloads.copied().skip(PACKETS - 1).step_by(PACKETS).collect();
    let of = |handler| known.iter().filter(move |ran| ran.handler == handler).copied();
    Ok(Profile {
        header_new: mean(Handler::Header, first.into_iter())?,
        header: mean(Handler::Header, of(Handler::Header))?,
        payload: mean(Handler::Payload, lasts.into_iter())?,
        completion: mean(Handler::Completion, of(Handler::Completion))?,
    })
}

/// What the authentication of a write costs: on a core that meets the capability for the first
/// time, then on one that remembers it. It is what the header handler costs more than the one of
/// `without`, the firmware of
/// [`program_without_authentication`](super::build::program_without_authentication).
///
/// # Errors
/// [`ProfileError`] says what did not work.
pub fn authentication(program: &Program, without: &Program) -> Result<[Cost; 2], ProfileError> {
    let of = |program| profile(program, Multiply::Table, STORE, DATA_BYTES);
    let (with, without) = (of(program)?, of(without)?.header);
    Ok([with.header_new, with.header].map(|header| Cost {
        instructions: header.instructions.saturating_sub(without.instructions),
        cycles: header.cycles.saturating_sub(without.cycles),
    }))
}

/// What the payload handler of a data node of a code with elements costs, for a packet with an
/// element: the mean over the elements of all data nodes.
///
/// # Errors
/// [`ProfileError`] says what did not work. [`ElementColumn::of`] says which codes there are.
pub fn element_payload(
    program: &Program,
    multiply: Multiply,
    code: &str,
) -> Result<Cost, ProfileError> {
    let mut costs = Vec::new();
    let nodes = ElementColumn::of(code, 0).map_err(ProfileError::Code)?.k;
    for column in 0..nodes {
        let elements = ElementColumn::of(code, column).map_err(ProfileError::Code)?;
        let (k, m, count) = (elements.k, elements.m, elements.terms[0].len());
        let settings = Settings { elements: Some(elements), ..settings(multiply, STORE)? };
        let mut nic = Nic::new(Hpu::new(program, &settings.context()?)?);
        let mut writes = writes(STORE, 0, DATA_BYTES, 0, u64::from(column));
        for (_, _, write) in &mut writes {
            let parity = |i| Coordinates { node: NODE + 1 + u32::from(i), address: 0 };
            write.scheme = Scheme::Elements { k, m, column };
            write.nodes.extend((0..m).map(parity));
            write.data = data(u64::from(column), count * DATA_BYTES);
        }
        let runs = run(&mut nic, &writes)?;
        let payloads = runs.into_iter().filter(|ran| ran.handler == Handler::Payload);
        // The first packet has no element.
        costs.extend(payloads.skip(1).filter_map(|ran| ran.counters));
    }
    mean_of(Handler::Payload, &costs)
}

/// What a payload handler costs if 1 to 8 cores of a cluster run it at once, each on packets of its
/// own: their accesses wait for banks of memory. The mean over the cores. Another seed gives other
/// data and another distance between the starts of the cores.
///
/// # Errors
/// [`ProfileError`] says what did not work.
pub fn payload_on_cluster(
    program: &Program,
    multiply: Multiply,
    role: Role,
    bytes: usize,
    cores: usize,
    seed: u64,
) -> Result<Cost, ProfileError> {
    if bytes == 0 || bytes > DATA_BYTES {
        return Err(ProfileError::Bytes(bytes));
    }
    let context = settings(multiply, role)?.context()?;
    let mut jobs = Vec::new();
    for core in 0..cores.clamp(1, CORES) {
        let recorder = Recorder { hpu: Hpu::new(program, &context)?, last: None };
        let mut nic = Nic::new(recorder);
        run(&mut nic, &writes(role, column(multiply, role), bytes, 0, seed << 8 | core as u64))?;
        jobs.push(nic.engine().last.clone().ok_or(ProfileError::NotRun(Handler::Payload))?);
    }
    // Packets come at any time: 500 to 1,523 cycles.
    let stagger_cycles = 500 + u64::from(data(seed, 1)[0]) * 4 + seed % 4;
    let counters = run_together(&mut jobs, stagger_cycles, RUNS_TOGETHER)?;
    mean_of(Handler::Payload, &counters)
}

/// Runs of each core that count.
const RUNS_TOGETHER: usize = 2;

/// A core that remembers its last payload handler.
struct Recorder {
    hpu: Hpu,
    last: Option<Job>,
}

impl Engine for Recorder {
    fn run(&mut self, handler: Handler, call: &Call<'_>) -> Result<Run, EngineError> {
        if handler == Handler::Payload {
            self.last = Some(Job {
                hpu: self.hpu.clone(),
                handler,
                packet: call.packet.to_vec(),
                slot: call.slot,
                request_id: call.request_id,
                now_ns: call.now_ns,
            });
        }
        self.hpu.run(handler, call)
    }

    fn set_context(&mut self, context: &[u8]) -> Result<(), EngineError> {
        self.hpu.set_context(context)
    }

    fn area(&self, area: Area) -> &[u8] {
        self.hpu.area(area)
    }

    fn area_mut(&mut self, area: Area) -> &mut [u8] {
        self.hpu.area_mut(area)
    }
}

/// The settings of a node in `role`.
fn settings(multiply: Multiply, role: Role) -> Result<Settings, ProfileError> {
    let (k, m) = match role {
        Role::Store { .. } => (0, 0),
        Role::Data(rs) | Role::Parity(rs) => (usize::from(rs.k), usize::from(rs.m)),
    };
    let coefficients = if m == 0 {
        Vec::new()
    } else {
        multiply.coefficients(k, m).map_err(ProfileError::Code)?
    };
    Ok(Settings {
        node: NODE,
        host_len: 1 << 40,
        staging_len: 1 << 16,
        keys: vec![(MASTER, VOLUME, EPOCH)],
        extents: vec![Extent { volume: VOLUME, segment: SEGMENT, base: 0, length: 1 << 30 }],
        coefficients,
        multiply,
        column: 0,
        elements: None,
    })
}

/// The column of a data node: any, or the one that costs most.
fn column(multiply: Multiply, role: Role) -> u8 {
    match role {
        Role::Data(rs) if multiply == Multiply::Planes => {
            u8::try_from(rs.k.saturating_sub(1)).unwrap_or(u8::MAX)
        }
        _ => 0,
    }
}

/// The costs that the network model takes: those of the firmware in place of the paper's. The
/// capability is known, as it is for all writes of a client but the first.
///
/// # Errors
/// [`ProfileError`] says what did not work.
pub fn handler_costs(program: &Program, multiply: Multiply) -> Result<HandlerCosts, ProfileError> {
    let bytes = HandlerCosts::default().bytes;
    let of = |role| profile(program, multiply, role, bytes as usize);
    let store = |children| of(Role::Store { children });
    let (single, ring, tree) = (store(0)?, store(1)?, store(2)?);
    let data_2 = of(Role::Data(Rs { k: 3, m: 2 }))?;
    let data_3 = of(Role::Data(Rs { k: 6, m: 3 }))?;
    let parity = of(Role::Parity(Rs { k: 6, m: 3 }))?;
    Ok(HandlerCosts {
        header: [single.header, ring.header, tree.header],
        payload: [single.payload, ring.payload, tree.payload],
        completion: [single.completion, ring.completion, tree.completion],
        encode_2: data_2.payload,
        encode_3: data_3.payload,
        completion_ec: data_3.completion,
        aggregate: parity.payload,
        bytes,
    })
}

/// The runs of handlers for the messages of one write: the source of each, and the rank of the
/// measured node.
fn run<E: Engine>(nic: &mut Nic<E>, writes: &[(u32, u8, Write)]) -> Result<Vec<Ran>, ProfileError> {
    for (source, rank, write) in writes {
        let (source, rank) = (*source, *rank);
        for mut packet in write.packets() {
            packet[0..4].copy_from_slice(&source.to_le_bytes());
            packet[14] = rank;
            for output in nic.packet(source, &packet, 1) {
                match output {
                    Output::Fault(error) => return Err(error.into()),
                    Output::Send(sent) => match Reply::parse(&sent) {
                        Some(reply) if reply.status != 0 => {
                            return Err(ProfileError::Refused(reply.status));
                        }
                        _ => {}
                    },
                    _ => {}
                }
            }
        }
    }
    Ok(nic.take_runs())
}

/// Source, rank of the measured node, and write of each message that the node gets. A node of
/// [`Role::Data`] has this column. Other seeds give other data.
fn writes(role: Role, column: u8, bytes: usize, round: u32, seed: u64) -> Vec<(u32, u8, Write)> {
    let key = MASTER.derive(VOLUME, EPOCH);
    let write = |scheme, nodes: u8, rank: u8| {
        let nodes = (0..nodes).map(|other| Coordinates {
            node: if other == rank { NODE } else { NODE + 1 + u32::from(other) },
            address: u64::from(round) << 20,
        });
        let mut write = Write {
            client: CLIENT,
            message: round,
            request: u64::from(round),
            capability: Capability::issue(&key, VOLUME, EPOCH, Rights::WRITE, u64::MAX),
            segment: SEGMENT.0,
            scheme,
            nodes: nodes.collect(),
            data: Vec::new(),
        };
        let first = DATA_BYTES - write.headers().len();
        let len = first + (PACKETS - 2) * DATA_BYTES + bytes;
        write.data = data(seed, len);
        write
    };
    match role {
        Role::Store { children: 0 } => vec![(CLIENT, 0, write(Scheme::Single, 1, 0))],
        Role::Store { children: 1 } => vec![(CLIENT, 0, write(Scheme::Ring { k: 4 }, 4, 0))],
        Role::Store { .. } => vec![(CLIENT, 0, write(Scheme::Tree { k: 4 }, 4, 0))],
        Role::Data(rs) | Role::Parity(rs) => {
            let (k, m) = (rs.k.min(255) as u8, rs.m.min(254) as u8);
            let code = |column| Scheme::Code { k, m, column };
            if matches!(role, Role::Data(_)) {
                return vec![(CLIENT, 0, write(code(column), 1 + m, 0))];
            }
            (0..k).map(|column| (u32::from(column), 1, write(code(column), 1 + m, 1))).collect()
        }
    }
}

/// Bytes without a pattern (SplitMix64).
fn data(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    let words = (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes());
    words.take(len).collect()
}

/// The mean of the runs, rounded.
fn mean(handler: Handler, runs: impl Iterator<Item = Ran>) -> Result<Cost, ProfileError> {
    mean_of(handler, &runs.filter_map(|ran| ran.counters).collect::<Vec<_>>())
}

fn mean_of(handler: Handler, counters: &[Counters]) -> Result<Cost, ProfileError> {
    let count = counters.len() as u64;
    if count == 0 {
        return Err(ProfileError::NotRun(handler));
    }
    let mean = |sum: u64| ((sum + count / 2) / count) as u32;
    Ok(Cost {
        instructions: mean(counters.iter().map(|c| c.instructions).sum()),
        cycles: mean(counters.iter().map(|c| c.cycles).sum()),
    })
}
