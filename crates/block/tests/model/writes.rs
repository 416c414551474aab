//! The write cache over a backend that uses every freedom, and layers that give way to others.

use bytes::Bytes;
use fieldstone_block::layers::{
    Align, Cache, CacheOptions, ReadAhead, ReadAheadOptions, WriteCache, WriteCacheOptions,
    WritePolicy,
};
use fieldstone_block::{
    Backend, Layer, Nanos, Op, Payload, Piece, QueueId, ReadDestination, Request, RequestFlags,
    RequestId, Stack, Stamps,
};

use crate::chaos::Chaos;
use crate::harness::{Harness, Shape};
use crate::{SEEDS, Wants, draw};

/// Options of a small write cache that is busy.
fn write_cache(seed: u64, shape: &Shape) -> WriteCache {
    let cell = u64::from(shape.cell_bytes);
    WriteCache::new(WriteCacheOptions {
        policy: [WritePolicy::Around, WritePolicy::Back][seed as usize % 2],
        max_dirty_bytes: cell * [8, 24, 200][seed as usize / 2 % 3],
        target_dirty_bytes: cell * [0, 4, 100][seed as usize / 6 % 3],
        max_age: Nanos([0, 5_000, 200_000][seed as usize / 18 % 3]),
        max_merge_bytes: cell * [1, 4, 32][seed as usize / 3 % 3],
        until_flush: seed.is_multiple_of(5),
    })
}

/// No more bytes are dirty than the options allow.
fn is_bounded<B: Backend>(stack: &Stack<B>) {
    let layer = stack.layer::<WriteCache>().unwrap();
    let stats = layer.stats();
    let options = layer.options();
    let (_, most) = options.iter().find(|(name, _)| *name == "max-dirty").unwrap();
    let most = fieldstone_units::parse_size(most).unwrap();
    assert!(stats.dirty_bytes + stats.out_bytes <= most, "{stats:?}");
}

/// Runs a stack with a write cache. Afterwards everything is written out, and is what was read.
fn check_write_cache(
    seed: u64,
    wants: Wants,
    layers: impl Fn(&Shape) -> Vec<Box<dyn Layer>>,
    shares: bool,
) -> Stack<Chaos> {
    let (shape, temper) = draw(seed, wants);
    let size_bytes = shape.cells as u64 * u64::from(shape.cell_bytes);
    let chaos = Chaos::new(size_bytes, temper, seed ^ 0xc4a0);
    let mut harness = Harness::new(Stack::new(chaos, layers(&shape)), shape, seed);
    harness.stable = Some(|stack: &Stack<Chaos>| stack.store().stable());
    harness.watch = Some(is_bounded);
    if shares {
        harness.intruder = Some(intrude);
    }
    if let Err(error) = harness.run(|_, _| true) {
        panic!("seed {seed}: {error}\n{shape:?}\n{temper:?}");
    }
    let mut stack = harness.backend;
    let mut out = Vec::new();
    let mut now = Nanos(u64::MAX / 2);
    let request = manual_read(size_bytes);
    stack.submit(request, now);
    stack.drain();
    for _ in 0..10_000 {
        stack.poll(now, &mut out);
        if out.len() == 1 && stack.unwritten().is_none() {
            break;
        }
        now = now.max(stack.deadline().unwrap());
    }
    assert!(stack.unwritten().is_none(), "seed {seed}: {:?}", stack.unwritten());
    if let Ok(Payload::Data(pieces)) = out.pop().unwrap().result {
        let seen: Vec<u8> = pieces.iter().map(bytes_of).collect::<Vec<_>>().concat();
        assert!(seen == stack.store_mut().content(), "seed {seed}: not all was written out");
    }
    stack
}

fn bytes_of(piece: &Piece) -> Vec<u8> {
    match piece {
        Piece::Data(data) => data.to_vec(),
        Piece::Zeroes(len) => vec![0; *len as usize],
    }
}

fn manual_read(len_bytes: u64) -> Request {
    Request {
        id: RequestId(9),
        op: Op::Read,
        offset_bytes: 0,
        len_bytes: len_bytes as u32,
        flags: RequestFlags::default(),
        data: Bytes::new(),
        destination: ReadDestination::default(),
        queue: QueueId::default(),
        stamps: Stamps::default(),
    }
}

/// The store is shared, and another client writes when the layers have settled. Afterwards it stays
/// shared, or is this client's alone again.
fn intrude(stack: &mut Stack<Chaos>, request: Request, now: &mut Nanos) {
    let stays = request.offset_bytes.is_multiple_of(3);
    let store = stack.store_mut();
    let was_shared = store.shared.is_some();
    store.shared = Some("another client writes");
    let mut out = Vec::new();
    let mut polls = 0;
    while !was_shared && !stack.store().is_settled {
        stack.poll(*now, &mut out);
        if let Some(deadline) = stack.deadline() {
            *now = (*now).max(deadline);
        }
        polls += 1;
        assert!(polls < 10_000, "the layers do not settle");
    }
    assert!(out.is_empty(), "there were no requests");
    assert!(stack.unwritten().is_none());
    let store = stack.store_mut();
    store.is_settled = false;
    store.intrude(request);
    if !stays {
        store.shared = None;
    }
    stack.poll(*now, &mut out);
}

#[test]
fn write_cache_keeps_the_contract() {
    let (mut kept, mut through, mut waited, mut overwritten) = (0, 0, 0, 0);
    let (mut overlays, mut failed, mut outs) = (0, 0, 0);
    for seed in 0..2 * SEEDS {
        let wants = Wants { blocks: false, streams: seed % 3 > 0, lines: seed.is_multiple_of(4) };
        let layers =
            |shape: &Shape| -> Vec<Box<dyn Layer>> { vec![Box::new(write_cache(seed, shape))] };
        let stack = check_write_cache(seed, wants, layers, false);
        let stats = stack.layer::<WriteCache>().unwrap().stats();
        kept += stats.kept;
        through += stats.through;
        waited += stats.waited;
        overwritten += stats.overwritten_bytes;
        overlays += stats.read_overlays;
        failed += stats.failed;
        outs += stats.write_outs;
    }
    assert!(
        outs < kept && through.min(waited).min(overlays).min(failed) > SEEDS / 4 && overwritten > 0,
        "{kept} kept, {outs} out, {through} through, {waited} waited, {overlays} overlays, \
         {failed} failed"
    );
}

#[test]
fn what_layers_keep_gives_way_to_other_clients() {
    let (mut kept, mut hits, mut windows) = (0, 0, 0);
    for seed in 0..SEEDS {
        let layers = |shape: &Shape| -> Vec<Box<dyn Layer>> {
            let cache =
                CacheOptions { write_allocate: seed.is_multiple_of(2), ..CacheOptions::default() };
            let window_bytes = Some([8 << 10, 64 << 10][seed as usize / 2 % 2]);
            vec![
                Box::new(Cache::new(cache)),
                Box::new(ReadAhead::new(ReadAheadOptions { window_bytes })),
                Box::new(Align::new()),
                Box::new(write_cache(seed, shape)),
            ]
        };
        let wants = Wants { blocks: true, streams: seed % 3 > 0, lines: true };
        let stack = check_write_cache(seed, wants, layers, true);
        kept += stack.layer::<WriteCache>().unwrap().stats().kept;
        hits += stack.layer::<Cache>().unwrap().stats().hits;
        windows += stack.layer::<ReadAhead>().unwrap().stats().hits;
    }
    assert!(kept.min(hits) > SEEDS && windows > SEEDS / 10, "{kept}, {hits}, {windows}");
}
