//! A client and the server, joined by streams that are cut at random. The requests complete in
//! random order. The test compares the results with a device in memory.

use crate::support::{Pair, export};
use bytes::Bytes;
use fieldstone_nbd::client::{Config, Outcome};
use fieldstone_nbd::wire::{cmd_flag, state};
use fieldstone_nbd::{Limits, SessionPhase};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const SIZE: u32 = 300_000;

#[derive(Clone, Debug)]
enum Action {
    Read {
        offset: u32,
        len: u32,
        df: bool,
    },
    Write {
        offset: u32,
        len: u32,
        fill: u8,
        fua: bool,
    },
    Trim {
        offset: u32,
        len: u32,
    },
    WriteZeroes {
        offset: u32,
        len: u32,
        no_hole: bool,
    },
    BlockStatus {
        offset: u32,
        len: u32,
        one: bool,
    },
    Flush,
    Cache {
        offset: u32,
        len: u32,
    },
    /// Wait until all earlier commands have a reply.
    Settle,
}

fn range() -> impl Strategy<Value = (u32, u32)> {
    (0..SIZE, prop_oneof![1u32..600, 1u32..9000, 30_000u32..150_000])
        .prop_map(|(offset, len)| (offset, len.min(SIZE - offset)))
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (range(), any::<bool>())
            .prop_map(|((offset, len), df)| Action::Read { offset, len, df }),
        4 => (range(), 1u8.., any::<bool>())
            .prop_map(|((offset, len), fill, fua)| Action::Write { offset, len, fill, fua }),
        1 => range().prop_map(|(offset, len)| Action::Trim { offset, len }),
        2 => (range(), any::<bool>()).prop_map(|((offset, len), no_hole)| Action::WriteZeroes {
            offset,
            len,
            no_hole
        }),
        2 => (range(), any::<bool>())
            .prop_map(|((offset, len), one)| Action::BlockStatus { offset, len, one }),
        1 => Just(Action::Flush),
        1 => range().prop_map(|(offset, len)| Action::Cache { offset, len }),
        3 => Just(Action::Settle),
    ]
}

/// The expected content of the device: bytes, and per byte whether it is a hole or reserved.
struct Model {
    bytes: Vec<u8>,
    flags: Vec<u32>,
}

/// Sends `action`. Returns the cookie, the range, and whether the action writes there.
fn send(pair: &mut Pair, action: &Action, structured: bool) -> (u64, u32, u32, bool) {
    let fua = |on| if on { cmd_flag::FUA } else { 0 };
    let client = &mut pair.client;
    match *action {
        Action::Read { offset, len, df } => {
            let flags = if df && structured { cmd_flag::DF } else { 0 };
            (client.read(offset.into(), len, flags), offset, len, false)
        }
        Action::Write { offset, len, fill, fua: on } => {
            let data = Bytes::from(vec![fill; len as usize]);
            (client.write(offset.into(), data, fua(on)), offset, len, true)
        }
        Action::Trim { offset, len } => (client.trim(offset.into(), len, 0), offset, len, true),
        Action::WriteZeroes { offset, len, no_hole } => {
            let flags = if no_hole { cmd_flag::NO_HOLE } else { 0 };
            (client.write_zeroes(offset.into(), len, flags), offset, len, true)
        }
        Action::BlockStatus { offset, len, one } => {
            let flags = if one { cmd_flag::REQ_ONE } else { 0 };
            (client.block_status(offset.into(), len, flags), offset, len, false)
        }
        Action::Flush | Action::Settle => (client.flush(), 0, 0, false),
        Action::Cache { offset, len } => (client.cache(offset.into(), len), offset, len, false),
    }
}

fn apply(model: &mut Model, action: &Action) {
    let (offset, len, fill, flags) = match *action {
        Action::Write { offset, len, fill, .. } => (offset, len, fill, 0),
        Action::Trim { offset, len } => (offset, len, 0, state::HOLE | state::ZERO),
        Action::WriteZeroes { offset, len, no_hole: true } => (offset, len, 0, state::ZERO),
        Action::WriteZeroes { offset, len, .. } => (offset, len, 0, state::HOLE | state::ZERO),
        _ => return,
    };
    let range = offset as usize..(offset + len) as usize;
    model.bytes[range.clone()].fill(fill);
    model.flags[range].fill(flags);
}

fn check(
    model: &Model,
    action: &Action,
    outcome: &Outcome,
    structured: bool,
) -> Result<(), TestCaseError> {
    match (action, outcome) {
        (Action::Read { offset, len, .. }, Outcome::Data(data)) => {
            let range = *offset as usize..(*offset + *len) as usize;
            prop_assert!(data[..] == model.bytes[range], "another content was read");
        }
        (Action::BlockStatus { offset, len, one }, Outcome::Extents(extents)) => {
            prop_assert!(structured);
            let mut at = *offset as usize;
            for extent in extents {
                let end = at + extent.len_bytes as usize;
                prop_assert!(model.flags[at..end].iter().all(|flags| *flags == extent.flags));
                at = end;
            }
            prop_assert!(*one || at == (*offset + *len) as usize);
        }
        (Action::BlockStatus { .. }, Outcome::Failed { .. }) => prop_assert!(!structured),
        (Action::Read { .. } | Action::BlockStatus { .. }, _) => {
            prop_assert!(false, "{action:?} gave {outcome:?}");
        }
        (_, outcome) => prop_assert_eq!(outcome, &Outcome::Done),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_device_behind_the_protocol_is_the_device(
        seed: u64,
        structured: bool,
        go: bool,
        actions in proptest::collection::vec(action(), 1..60),
        max_in_flight in 1u32..9,
        max_memory_bytes in prop_oneof![Just(0usize), Just(100_000), Just(1 << 30)],
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let config =
            Config { export: "disk".into(), structured, allocation: structured, go };
        let limits = Limits {
            max_in_flight,
            max_memory_bytes,
            max_output_bytes: 10_000,
            receive_bytes: 0,
            ..Limits::default()
        };
        let mut pair = Pair::new(config, export("disk", SIZE.into()), limits);
        pair.run(&mut rng);
        let about = pair.client.about().unwrap();
        prop_assert_eq!(about.size_bytes, u64::from(SIZE));
        prop_assert_eq!(about.allocation_id.is_some(), structured);

        let size = SIZE as usize;
        let mut model =
            Model { bytes: vec![0; size], flags: vec![state::HOLE | state::ZERO; size] };
        let mut open: Vec<(u64, u32, u32, bool, Action)> = Vec::new();
        for action in actions.into_iter().chain([Action::Settle]) {
            // Requests in flight together may run in any order, so conflicting ones must wait.
            let (start, len, writes) = match action {
                Action::Settle => (0, SIZE, true),
                Action::Write { offset, len, .. }
                | Action::Trim { offset, len }
                | Action::WriteZeroes { offset, len, .. } => (offset, len, true),
                Action::Read { offset, len, .. }
                | Action::BlockStatus { offset, len, .. }
                | Action::Cache { offset, len } => (offset, len, false),
                Action::Flush => (0, 0, false),
            };
            let conflict = open.iter().any(|(_, at, length, wrote, _)| {
                (writes || *wrote) && start < at + length && *at < start + len
            });
            if conflict || matches!(action, Action::Settle) {
                for (cookie, _, _, _, done) in open.drain(..) {
                    let outcome = pair.outcome(cookie, &mut rng);
                    check(&model, &done, &outcome, structured)?;
                }
            }
            let (cookie, at, len, writes) = send(&mut pair, &action, structured);
            apply(&mut model, &action);
            open.push((cookie, at, len, writes, action));
        }
        for (cookie, _, _, _, done) in open.drain(..) {
            let outcome = pair.outcome(cookie, &mut rng);
            check(&model, &done, &outcome, structured)?;
        }
        prop_assert!(pair.ram.bytes == model.bytes);
        prop_assert_eq!(pair.client.in_flight(), 0);
        prop_assert_eq!(pair.session.in_flight(), 0);
        prop_assert_eq!(pair.session.violation(), None);

        pair.client.disconnect();
        pair.run(&mut rng);
        prop_assert_eq!(pair.session.phase(), SessionPhase::Closed);
    }
}
