//! What handlers cost: writes through one node whose firmware runs on a core, and the core's
//! counters.
//!
//! The core is alone: nothing else uses its memories, commands are done at once, and instructions
//! are always in the cache. So the numbers are those of a handler without waits, as the network
//! model takes them ([`HandlerCosts`]). That model adds the waits.

use fieldstone_proto::capability::{Capability, MasterKey, Rights};
use fieldstone_proto::ids::{Epoch, SegmentId, VolumeId};

use super::engine::{EngineError, Handler};
use super::hpu::{Hpu, HpuError};
use super::nic::{Nic, Output, Ran};
use super::packet::{Coordinates, DATA_BYTES, Reply, Scheme, Write};
use super::state::{Extent, Multiply, Settings, SettingsError};
use crate::network::handlers::{Cost, HandlerCosts, Role, Rs};
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
    let (k, m) = match role {
        Role::Store { .. } => (0, 0),
        Role::Data(rs) | Role::Parity(rs) => (usize::from(rs.k), usize::from(rs.m)),
    };
    let coefficients = if m == 0 {
        Vec::new()
    } else {
        multiply.coefficients(k, m).map_err(ProfileError::Code)?
    };
    let settings = Settings {
        node: NODE,
        host_len: 1 << 40,
        staging_len: 1 << 16,
        keys: vec![(MASTER, VOLUME, EPOCH)],
        extents: vec![Extent { volume: VOLUME, segment: SEGMENT, base: 0, length: 1 << 30 }],
        coefficients,
        multiply,
        column: 0,
    };
    let mut nic = Nic::new(Hpu::new(program, &settings.context()?)?);
    let column = if multiply == Multiply::Planes { k.saturating_sub(1) } else { 0 };
    let column = u8::try_from(column).unwrap_or(u8::MAX);
    let new = run(&mut nic, role, column, bytes, 0)?;
    let known = run(&mut nic, role, column, bytes, 1)?;
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

/// The messages of one write, and the runs of their handlers.
fn run(
    nic: &mut Nic<Hpu>,
    role: Role,
    column: u8,
    bytes: usize,
    round: u32,
) -> Result<Vec<Ran>, ProfileError> {
    for (source, rank, write) in writes(role, column, bytes, round) {
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
/// [`Role::Data`] has this column.
fn writes(role: Role, column: u8, bytes: usize, round: u32) -> Vec<(u32, u8, Write)> {
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
        write.data = (0..len).map(|i| (i * 7 + i / 256 * 13 + 5) as u8).collect();
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

/// The mean of the runs, rounded.
fn mean(handler: Handler, runs: impl Iterator<Item = Ran>) -> Result<Cost, ProfileError> {
    let counters: Vec<_> = runs.filter_map(|ran| ran.counters).collect();
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
