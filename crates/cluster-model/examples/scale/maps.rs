//! What a map costs: its bytes, its changes, the way from an object to an OSD.

use std::cell::Cell;
use std::sync::Arc;

use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{Addresses, Incremental, OsdMap, PgId};
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{ObjectName, Operation};
use fieldstone_rados::objecter::{Action, MAX_IN_FLIGHT, Objecter, Options, RequestId, Token};
use fieldstone_rados::op::ObjectOps;

use crate::Figures;
use crate::count::{counted, median};
use crate::model::{self, POOL};

/// Runs of each time.
const RUNS: usize = 31;
/// Upmaps in a change of the balancer.
const UPMAPS: usize = 100;
/// Groups that are placed for a time.
const PLACEMENTS: u32 = 1_000;

/// Adds the figures of a map.
pub fn measure(map: &OsdMap, osds: u32, figures: &mut Figures) {
    let bytes = map.encode();
    figures.count(osds, "placement groups", "", map.pools[&POOL].pg_num as usize);
    figures.count(osds, "full map", "bytes", bytes.len());
    figures.count(osds, "the same with addresses between OSDs", "bytes", real_len(map, &bytes));
    let decode = || OsdMap::decode(&bytes).expect("we have encoded it");
    let (decoded, memory) = counted(decode);
    assert!(&decoded == map, "the codec changes a map");
    figures.add(osds, "memory of a map", "bytes", memory.live_bytes as f64);
    figures.micros(osds, "decode a full map", median(RUNS, || (), |()| decode()));
    let crush =
        Incremental { crush: Some(Arc::clone(&map.crush)), ..Incremental::new(map.fsid, 1) };
    figures.count(osds, "CRUSH map of it", "bytes", crush.encode().len());
    let (copy, memory) = counted(|| map.clone());
    drop(copy);
    figures.count(osds, "copy a map: allocations", "", memory.allocations);
    figures.micros(osds, "copy a map", median(RUNS, || (), |()| map.clone()));

    let names = [
        ("one OSD down: change", "one OSD down: decode and apply"),
        ("100 upmaps: change", "100 upmaps: decode and apply"),
        ("one CRUSH weight: change", "one CRUSH weight: decode and apply"),
    ];
    let victim = OsdId(osds / 2);
    let changes = [model::down(map, victim), model::upmaps(map, UPMAPS), model::reweighted(map)];
    for ((size, time), change) in names.into_iter().zip(changes) {
        let bytes = change.encode();
        figures.count(osds, size, "bytes", bytes.len());
        let apply = |mut map: OsdMap| {
            let change = Incremental::decode(&bytes).expect("we have encoded it");
            map.apply(&change).expect("it is the next one");
            map
        };
        figures.micros(osds, time, median(RUNS, || map.clone(), apply));
    }
    place(map, osds, figures);
    requests(map, osds, victim, figures);
}

/// The length of the map as monitors write it. It has three more lists of addresses, which our
/// encoder leaves empty.
fn real_len(map: &OsdMap, bytes: &[u8]) -> usize {
    let mut bare = map.clone();
    bare.client_addresses.fill(Addresses::default());
    bytes.len() + 3 * (bytes.len() - bare.encode().len())
}

fn place(map: &OsdMap, osds: u32, figures: &mut Figures) {
    let groups = map.pools[&POOL].pg_num;
    let all = || {
        for number in 0..PLACEMENTS {
            let seed = number.wrapping_mul(2_654_435_761) % groups;
            std::hint::black_box(map.place(PgId { pool: POOL, seed })).expect("there is one");
        }
    };
    let time = median(RUNS, || (), |()| all()) / PLACEMENTS;
    figures.micros(osds, "place one group by CRUSH", time);
}

/// Requests of an objecter.
struct Load {
    objecter: Objecter<OsdMap>,
    ids: Vec<RequestId>,
}

impl Load {
    fn new(map: &Arc<OsdMap>) -> Self {
        let mut objecter = Objecter::new(Options::default(), Nanos(0));
        objecter.map_changed(Arc::clone(map), Nanos(0));
        Self { objecter, ids: Vec::new() }
    }

    /// Submits as many requests as may be in flight. Returns how many were sent.
    fn submit(mut self) -> Self {
        for number in 0..MAX_IN_FLIGHT as u64 {
            let mut ops = ObjectOps::new();
            ops.stat();
            let name = ObjectName::new(POOL, "", &format!("rbd_data.1.{number:016x}"));
            let operation = Operation::new(name, ops);
            self.ids.push(self.objecter.submit(Token(number), operation, Nanos(0)));
        }
        assert_eq!(self.sent(), MAX_IN_FLIGHT, "all are sent");
        self
    }

    /// Carries actions out, and counts what is sent.
    fn sent(&mut self) -> usize {
        let mut sent = 0;
        while let Some(action) = self.objecter.poll_action() {
            match action {
                Action::Open { osd, .. } => self.objecter.session_ready(osd, Nanos(0)),
                Action::Send(..) => sent += 1,
                _ => {}
            }
        }
        sent
    }

    fn cancel(mut self) -> Self {
        for id in std::mem::take(&mut self.ids) {
            self.objecter.cancel(id, Nanos(0));
        }
        self
    }
}

fn requests(map: &OsdMap, osds: u32, victim: OsdId, figures: &mut Figures) {
    let map = Arc::new(map.clone());
    let new = || Load::new(&map);
    let each = MAX_IN_FLIGHT as u32;
    let cold = median(RUNS, new, Load::submit) / each;
    figures.micros(osds, "a request, all caches cold", cold);
    let warm = median(RUNS, || new().submit().cancel(), Load::submit) / each;
    figures.micros(osds, "a request, place remembered", warm);

    let mut next = OsdMap::clone(&map);
    next.apply(&model::down(&map, victim)).expect("it is the next one");
    let next = Arc::new(next);
    let moved = Cell::new(0);
    let change = |mut load: Load| {
        load.objecter.map_changed(Arc::clone(&next), Nanos(1));
        moved.set(load.sent());
        load
    };
    let time = median(RUNS, || new().submit(), change);
    figures.micros(osds, "1,024 requests in flight, one OSD goes down", time);
    figures.count(osds, "of these, requests sent again", "", moved.get());
}
