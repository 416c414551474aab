//! Carries courses out on a real cluster.
//!
//! The open image has a client in this thread. Orders are carried out by another client in a thread
//! of its own, as by a command beside a server, while this thread lets the image go on: it has to
//! give its lock up. A third client reads what is compared.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use fieldstone_block::{
    Backend, Completion, Nanos, Payload, QueueId, Request, RequestFlags, RequestId, Stamps,
};
use fieldstone_host::ceph::{CephSettings, Session};
use fieldstone_rbd::pool::Pool;
use fieldstone_rbd::{Image, ImageSpec, Phase, RbdError};

use crate::course::{Carrier, Checked, Io, Order, bytes_of};

/// Anything ends in this time, the lock of a dead client included.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the thread of an open image sleeps at most while an order is carried out.
const PAUSE: Nanos = Nanos::from_ms(2);
/// So long after the death of a client, none of its requests is executed any more.
const SETTLED: Duration = Duration::from_millis(300);
/// A dead client watches its image for so long: OSDs end its watch after 30 s of silence. An image
/// with a watcher is not removed.
const WATCHED: Duration = Duration::from_secs(35);
/// Requests of a reader.
const READ_BYTES: u64 = 4 << 20;

/// A client with an image.
struct Opened {
    session: Session,
    image: Image,
    next_id: u64,
}

type Outcome = Result<Result<(), RbdError>, String>;

/// Carries orders out, in a thread of its own.
struct Manager {
    /// With the moment from which on an order may be carried out.
    orders: Sender<(Instant, Order)>,
    outcomes: Receiver<Outcome>,
}

pub struct ClusterCarrier {
    settings: CephSettings,
    pool: String,
    folder: PathBuf,
    /// Every so many checkpoints are checked by others.
    every: u64,
    checkpoints: u64,
    opened: Option<Opened>,
    /// A client for the next open image: to connect takes longer than to open.
    spare: Option<Session>,
    /// Until then, a dead client may watch an image.
    watched_until: Instant,
    manager: Manager,
    /// The lines of the input.
    answers: Receiver<String>,
}

fn spec(pool: &str, image: &str, snapshot: Option<&str>, read_only: bool) -> ImageSpec {
    ImageSpec {
        pool: pool.to_owned(),
        image: image.to_owned(),
        snapshot: snapshot.map(str::to_owned),
        read_only,
        ..ImageSpec::default()
    }
}

fn is_late(began: Instant, what: &str) -> Option<Result<(), String>> {
    (began.elapsed() > PATIENCE).then(|| Err(format!("{what}: nothing after {PATIENCE:?}")))
}

impl Opened {
    fn open(mut session: Session, spec: ImageSpec) -> Result<Self, String> {
        let mut image = Image::open(session.cluster(), spec);
        let began = Instant::now();
        let opening = |image: &mut Image, _| match image.phase() {
            Phase::Opening => is_late(began, "opening"),
            Phase::Open => Some(Ok(())),
            other => Some(Err(format!("{}: {other:?}", image.spec().path()))),
        };
        session.drive(&mut image, opening, |_| {})??;
        Ok(Self { session, image, next_id: 0 })
    }

    fn close(mut self) -> Result<Session, String> {
        self.image.close();
        let began = Instant::now();
        let closing = |image: &mut Image, _| match image.phase() {
            Phase::Closed => Some(Ok(())),
            _ => is_late(began, "closing"),
        };
        self.session.drive(&mut self.image, closing, |_| {})??;
        Ok(self.session)
    }

    fn submit(&mut self, io: Io) -> RequestId {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        let request = Request {
            id,
            op: io.op,
            offset_bytes: io.offset,
            len_bytes: u32::try_from(io.len).expect("images of courses are small"),
            flags: RequestFlags { no_hole: io.no_hole, ..RequestFlags::default() },
            data: io.data,
            destination: Default::default(),
            queue: QueueId(0),
            stamps: Stamps::default(),
        };
        let now = self.session.timer().now();
        self.image.submit(request, now);
        id
    }

    fn carry_out(&mut self, requests: Vec<Io>) -> Result<Vec<Payload>, String> {
        let ids: Vec<_> = requests.into_iter().map(|io| self.submit(io)).collect();
        let mut done: Vec<Completion> = Vec::new();
        let (began, wanted) = (Instant::now(), ids.len());
        let answers = |image: &mut Image, now| {
            image.poll(now, &mut done);
            if done.len() >= wanted { Some(Ok(())) } else { is_late(began, "requests") }
        };
        self.session.drive(&mut self.image, answers, |_| {})??;
        let mut payloads = Vec::new();
        for id in ids {
            let index = done.iter().position(|completion| completion.id == id);
            let index = index.ok_or("an answer to no request")?;
            let Completion { op, result, .. } = done.swap_remove(index);
            payloads.push(result.map_err(|error| format!("{op:?}: {error}"))?);
        }
        Ok(payloads)
    }
}

impl Manager {
    fn start(settings: &CephSettings, pool: &str) -> Result<Self, String> {
        let (orders, incoming) = channel::<(Instant, Order)>();
        let (outgoing, outcomes) = channel();
        let (settings, pool) = (settings.clone(), pool.to_owned());
        let work = move || {
            let opened = Session::connect(&settings).and_then(|mut session| {
                let (cluster, timer) = (session.cluster(), session.timer());
                let seed = u64::from(std::process::id()) << 32;
                let opening = async move { Pool::open(cluster, timer, &pool, "", seed).await };
                let pool = session.run(opening, |_| {})?.map_err(|error| error.to_string())?;
                Ok((session, Rc::new(pool)))
            });
            let (mut session, pool) = match opened {
                Ok(opened) => opened,
                Err(why) => return drop(outgoing.send(Err(why))),
            };
            if outgoing.send(Ok(Ok(()))).is_err() {
                return;
            }
            while let Ok((moment, order)) = incoming.recv() {
                thread::sleep(moment.saturating_duration_since(Instant::now()));
                let outcome = session.run(order.obey(Rc::clone(&pool)), |_| {});
                if outgoing.send(outcome).is_err() {
                    break;
                }
            }
            session.close();
        };
        thread::Builder::new().name("orders".into()).spawn(work).map_err(|e| e.to_string())?;
        let manager = Self { orders, outcomes };
        let ready = manager.outcomes.recv().map_err(|error| error.to_string())??;
        ready.map_err(|error| error.to_string())?;
        Ok(manager)
    }
}

/// Reads the input in a thread of its own.
fn read_input() -> Result<Receiver<String>, String> {
    let (sender, lines) = channel();
    let work = move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("input".into()).spawn(work).map_err(|error| error.to_string())?;
    Ok(lines)
}

impl ClusterCarrier {
    pub fn connect(conf: &str, pool: &str, (folder, every): (&str, u64)) -> Result<Self, String> {
        let settings = CephSettings::read(&["--conf".to_owned(), conf.to_owned()])?;
        let manager = Manager::start(&settings, pool)?;
        let (pool, folder) = (pool.to_owned(), PathBuf::from(folder));
        let answers = read_input()?;
        Ok(Self {
            settings,
            pool,
            folder,
            every,
            checkpoints: 0,
            opened: None,
            spare: None,
            watched_until: Instant::now(),
            manager,
            answers,
        })
    }

    /// Waits for a value from elsewhere, while the open image goes on: other clients may ask it for
    /// its lock.
    fn wait_for<T>(
        opened: &mut Option<Opened>,
        values: &Receiver<T>,
        what: &str,
    ) -> Result<T, String> {
        let Some(opened) = opened else { return values.recv().map_err(|error| error.to_string()) };
        let began = Instant::now();
        let come = |_: &mut Image, _| match values.try_recv() {
            Ok(value) => Some(Ok(value)),
            Err(TryRecvError::Disconnected) => Some(Err(format!("{what}: nobody answers"))),
            Err(TryRecvError::Empty) if began.elapsed() < PATIENCE => None,
            Err(TryRecvError::Empty) => Some(Err(format!("{what}: nothing after {PATIENCE:?}"))),
        };
        opened.session.sleep_at_most(PAUSE);
        let value = opened.session.drive(&mut opened.image, come, |_| {});
        opened.session.sleep_at_most(Nanos::from_ms(500));
        value?
    }

    fn session(&mut self) -> Result<Session, String> {
        let session = match self.spare.take() {
            Some(session) => session,
            None => Session::connect(&self.settings)?,
        };
        Ok(session)
    }

    fn opened(&mut self) -> Result<&mut Opened, String> {
        self.opened.as_mut().ok_or_else(|| "no image is open".to_owned())
    }
}

impl Carrier for ClusterCarrier {
    fn open(&mut self, image: &str) -> Result<(), String> {
        let session = self.session()?;
        self.opened = Some(Opened::open(session, spec(&self.pool, image, None, false))?);
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let opened = self.opened.take().ok_or("no image is open")?;
        self.spare = Some(opened.close()?);
        Ok(())
    }

    fn kill(&mut self, in_flight: Vec<Io>) -> Result<(), String> {
        let mut opened = self.opened.take().ok_or("no image is open")?;
        let turns = in_flight.iter().map(|io| io.offset).sum::<u64>() % 8;
        for io in in_flight {
            opened.submit(io);
        }
        // Some requests get further than others.
        let mut turn = 0;
        let some = |_: &mut Image, _| {
            turn += 1;
            (turn > turns).then_some(())
        };
        opened.session.drive(&mut opened.image, some, |_| {})?;
        // Nothing is told to the cluster: the sockets end.
        drop(opened);
        self.watched_until = Instant::now() + WATCHED;
        thread::sleep(SETTLED);
        Ok(())
    }

    fn wait_for_size(&mut self, size: u64) -> Result<(), String> {
        let opened = self.opened()?;
        let began = Instant::now();
        let sized = |image: &mut Image, _| match image.info().size_bytes == size {
            true => Some(Ok(())),
            false => is_late(began, "the new size"),
        };
        opened.session.drive(&mut opened.image, sized, |_| {})?
    }

    fn carry_out(&mut self, requests: Vec<Io>) -> Result<Vec<Payload>, String> {
        self.opened()?.carry_out(requests)
    }

    fn manage(&mut self, order: Order) -> Result<Result<(), RbdError>, String> {
        let moment = match order {
            Order::Remove(_) => self.watched_until,
            _ => Instant::now(),
        };
        self.manager.orders.send((moment, order)).map_err(|error| error.to_string())?;
        Self::wait_for(&mut self.opened, &self.manager.outcomes, "an order")?
    }

    fn read_all(&mut self, image: &str, snapshot: Option<&str>) -> Result<Vec<u8>, String> {
        let session = Session::connect(&self.settings)?;
        let mut reader = Opened::open(session, spec(&self.pool, image, snapshot, true))?;
        let size = reader.image.info().size_bytes;
        let mut bytes = Vec::new();
        for offset in (0..size).step_by(READ_BYTES as usize) {
            let len = READ_BYTES.min(size - offset);
            let op = fieldstone_block::Op::Read;
            let io = Io { op, offset, len, data: Default::default(), no_hole: false };
            for payload in reader.carry_out(vec![io])? {
                bytes.append(&mut bytes_of(&payload)?);
            }
        }
        reader.close()?.close();
        Ok(bytes)
    }

    fn check(&mut self, checked: &Checked) -> Result<(), String> {
        self.checkpoints += 1;
        if !self.checkpoints.is_multiple_of(self.every) {
            return Ok(());
        }
        let failed = |error: std::io::Error| error.to_string();
        let path = self.folder.join("expected");
        std::fs::write(&path, checked.bytes).map_err(failed)?;
        let mut line = format!("check {}/{}", self.pool, checked.image);
        if let Some(snapshot) = checked.snapshot {
            line = format!("{line}@{snapshot}");
        }
        line = format!("{line} {}", path.display());
        if checked.has_map {
            line.push_str(" map");
        }
        if checked.was_killed {
            line.push_str(" killed");
        }
        println!("{line}");
        std::io::stdout().flush().map_err(failed)?;
        let answer = Self::wait_for(&mut self.opened, &self.answers, "a check")?;
        match answer.trim() {
            "ok" => Ok(()),
            other => Err(format!("{line}: {other}")),
        }
    }
}
