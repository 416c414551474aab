//! A load on plain objects of a pool, without an image: by librados, and by the client here.
//!
//! Both do the same: as many requests under way as the load says, on the same objects at the same
//! places, each answered completely. One thread submits. librados has threads of its own; the
//! client here runs in the thread that submits. On several cores, each core has a thread with a
//! client of its own and the whole depth.
//!
//! librados is used as cheaply as it can be: without callbacks. The thread sleeps until the oldest
//! request has ended, then takes every request that has ended and submits the next ones.

use std::cell::RefCell;
use std::ffi::CString;
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Barrier;
use std::task::Poll;
use std::time::Instant;

use anyhow::{Context, anyhow, bail, ensure};
use fieldstone_host::ceph::{CephSettings, Session};
use fieldstone_rados::cluster::{Cluster, ObjectName, Operation};
use fieldstone_rados::op::ObjectOps;
use serde::{Deserialize, Serialize};

use super::librados::{Librados, Request};
use crate::course::Course;
use crate::fio::{Load, Measured};
use crate::generator::random_bytes;
use crate::usage::Usage;

/// Size of an object: that of an image.
pub const OBJECT_BYTES: u64 = 4 << 20;

/// Who makes the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectClient {
    /// librados.
    Librados,
    /// Our client, on this many cores.
    Ours {
        /// The cores.
        cores: u16,
    },
}

/// A load on objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectLoad {
    /// Who makes the requests.
    pub client: ObjectClient,
    /// The client's name without its type.
    pub id: String,
    /// ceph.conf.
    pub conf: PathBuf,
    /// The pool.
    pub pool: String,
    /// What the names of the objects begin with.
    pub prefix: String,
    /// Size of all objects together, a multiple of [`OBJECT_BYTES`].
    pub size_bytes: u64,
    /// The accesses.
    pub load: Load,
    /// Length of the run in seconds. None for one pass.
    pub seconds: Option<f64>,
    /// The same seed makes the same random places.
    pub seed: u64,
}

impl ObjectLoad {
    /// The names of all objects.
    pub fn names(&self) -> Vec<String> {
        names(&self.prefix, self.size_bytes)
    }

    fn course(&self, seed: u64) -> anyhow::Result<Course> {
        Course::new(self.load, self.size_bytes, self.seconds, seed)
    }
}

/// The names of the objects that hold this many bytes.
pub fn names(prefix: &str, size_bytes: u64) -> Vec<String> {
    (0..size_bytes.div_ceil(OBJECT_BYTES)).map(|at| format!("{prefix}.{at:08x}")).collect()
}

/// The number of the object with this place, and the place in it.
fn place(offset_bytes: u64) -> anyhow::Result<(usize, u64)> {
    Ok((usize::try_from(offset_bytes / OBJECT_BYTES)?, offset_bytes % OBJECT_BYTES))
}

/// Runs a load.
///
/// # Errors
/// The cluster cannot be reached, or a request fails.
pub fn measure(load: &ObjectLoad) -> anyhow::Result<Measured> {
    let before = Usage::now();
    let course = match load.client {
        ObjectClient::Librados => by_librados(load)?,
        ObjectClient::Ours { cores } => by_ours(load, cores.max(1))?,
    };
    let used = Usage::now().without(&before);
    let mut measured = course.measured();
    (measured.cpu_s, measured.switches) = (used.cpu_s(), used.switches as u64);
    Ok(measured)
}

/// A request of librados, and when it was submitted.
struct Slot {
    request: Option<Request>,
    submitted: Instant,
    buffer: Vec<u8>,
}

fn by_librados(load: &ObjectLoad) -> anyhow::Result<Course> {
    let rados = Librados::open(&load.id, &load.conf, &load.pool, &[])?;
    let names = load.names().into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
    let data = random_bytes(usize::try_from(load.load.block_bytes)?, load.seed);
    let mut course = load.course(load.seed)?;
    let submit = |slot: &mut Slot, course: &mut Course| -> anyhow::Result<()> {
        let now = Instant::now();
        let Some(offset_bytes) = course.next(now) else { return Ok(()) };
        let (object, at) = place(offset_bytes)?;
        let name = names.get(object).context("every place has an object")?;
        let buffer = std::mem::take(&mut slot.buffer);
        slot.submitted = now;
        slot.request = Some(match load.load.pattern.reads() {
            true => rados.read(name, at, buffer)?,
            false => rados.write(name, at, buffer)?,
        });
        Ok(())
    };
    let now = Instant::now();
    let mut slots: Vec<Slot> = (0..load.load.depth)
        .map(|_| Slot { request: None, submitted: now, buffer: data.to_vec() })
        .collect();
    for slot in &mut slots {
        submit(slot, &mut course)?;
    }
    while let Some(oldest) =
        slots.iter().filter(|slot| slot.request.is_some()).min_by_key(|slot| slot.submitted)
    {
        oldest.request.iter().for_each(Request::wait);
        for slot in &mut slots {
            if let Some(request) = slot.request.take_if(|request| request.is_complete()) {
                slot.buffer = request.finish()?;
                course.done(slot.submitted, Instant::now());
                submit(slot, &mut course)?;
            }
        }
    }
    Ok(course)
}

fn by_ours(load: &ObjectLoad, cores: u16) -> anyhow::Result<Course> {
    let ready = Barrier::new(usize::from(cores));
    let mut courses = std::thread::scope(|scope| {
        let begin = |core: u16| {
            let ready = &ready;
            // A thread that fails before the others begin would let them wait for ever: the process
            // ends instead.
            move || on_core(load, core, ready)
        };
        let threads: Vec<_> = (1..cores).map(|core| scope.spawn(begin(core))).collect();
        let own = begin(0)();
        let others = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of the load has panicked")))
        });
        std::iter::once(own).chain(others).collect::<anyhow::Result<Vec<Course>>>()
    })?;
    let mut all = courses.remove(0);
    courses.iter().for_each(|course| all.join(course));
    Ok(all)
}

/// The load of one core, in this thread.
fn on_core(load: &ObjectLoad, core: u16, ready: &Barrier) -> anyhow::Result<Course> {
    let connected = connect(load);
    ready.wait();
    let (mut session, pool) = connected?;
    let course = load.course(load.seed.wrapping_add(u64::from(core)))?;
    let flight = Flight {
        cluster: session.cluster(),
        objects: load.names().iter().map(|name| ObjectName::new(pool, "", name)).collect(),
        data: random_bytes(usize::try_from(load.load.block_bytes)?, load.seed),
        reads: load.load.pattern.reads(),
        course: RefCell::new(course),
    };
    let flight = Rc::new(flight);
    let work = all(Rc::clone(&flight), load.load.depth);
    session.run(work, |_| ()).map_err(|error| anyhow!("{error}"))??;
    session.close();
    let flight = Rc::into_inner(flight).context("all requests have ended")?;
    Ok(flight.course.into_inner())
}

fn connect(load: &ObjectLoad) -> anyhow::Result<(Session, fieldstone_crush::osdmap::PoolId)> {
    let conf = load.conf.display().to_string();
    let words = ["--id", &load.id, "--conf", &conf].map(str::to_owned);
    let settings = CephSettings::read(&words).map_err(|error| anyhow!("{error}"))?;
    let mut session = Session::connect(&settings).map_err(|error| anyhow!("{error}"))?;
    let cluster = session.cluster();
    let pools = session.run(async move { cluster.pools().await }, |_| ());
    let pools = pools.map_err(|error| anyhow!("{error}"))??;
    match pools.iter().find(|pool| pool.name == load.pool) {
        Some(pool) => Ok((session, pool.id)),
        None => bail!("there is no pool {:?}", load.pool),
    }
}

/// What the requests of a core share.
struct Flight {
    cluster: Cluster,
    objects: Vec<ObjectName>,
    data: bytes::Bytes,
    reads: bool,
    course: RefCell<Course>,
}

/// One of the requests under way, again and again.
async fn slot(flight: Rc<Flight>) -> anyhow::Result<()> {
    let len_bytes = flight.data.len();
    loop {
        let submitted = Instant::now();
        let next = flight.course.borrow_mut().next(submitted);
        let Some(offset_bytes) = next else { return Ok(()) };
        let (object, at) = place(offset_bytes)?;
        let name = flight.objects.get(object).context("every place has an object")?;
        let mut ops = ObjectOps::new();
        match flight.reads {
            true => ops.read(at, len_bytes as u64),
            false => ops.write(at, flight.data.clone()),
        };
        let reply = flight.cluster.operate(Operation::new(name.clone(), ops)).await?;
        if flight.reads {
            let got = reply.ops.first().map_or(0, |op| op.data.len());
            ensure!(got == len_bytes, "a read of {len_bytes} bytes gave {got}");
        }
        flight.course.borrow_mut().done(submitted, Instant::now());
    }
}

/// Runs all slots until each has ended.
async fn all(flight: Rc<Flight>, depth: u32) -> anyhow::Result<()> {
    type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    let mut slots: Vec<Running> =
        (0..depth).map(|_| Box::pin(slot(Rc::clone(&flight))) as Running).collect();
    drop(flight);
    poll_fn(move |context| {
        let mut failure = None;
        slots.retain_mut(|slot| match slot.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                failure = failure.take().or(result.err());
                false
            }
        });
        match failure {
            Some(failure) => Poll::Ready(Err(failure)),
            None if slots.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_an_object() {
        assert_eq!(names("b", 8 << 20), ["b.00000000", "b.00000001"]);
        assert_eq!(names("b", 1).len(), 1);
        assert_eq!(place(0).expect("small"), (0, 0));
        assert_eq!(place((4 << 20) - 4096).expect("small"), (0, (4 << 20) - 4096));
        assert_eq!(place((4 << 20) + 4096).expect("small"), (1, 4096));
    }
}
