//! Clients of one model of a cluster, each with an image or a procedure of its own.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_block::{
    Backend, BlockError, Completion, Nanos, Op, Payload, Piece, QueueId, Request, RequestFlags,
    RequestId, Stamps,
};
use fieldstone_cluster_model::objects::Caller;
use fieldstone_cluster_model::{ClientHandle, Delays, ModelCluster};
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{Cluster, ObjectName, Operation, SnapId};
use fieldstone_rados::encoding::{AddressKind, EntityAddress};
use fieldstone_rados::op::{ObjectOps, Reply};
use fieldstone_rbd::format::{ObjectMap, ObjectState, names};
use fieldstone_rbd::header::Header;
use fieldstone_rbd::pool::Pool;
use fieldstone_rbd::{Image, ImageSpec, Phase, RbdError, Timer};
use fieldstone_tasks::Executor;

/// How long a step may take, in the world's time. Dead clients take 30 s to go.
const PATIENCE: Nanos = Nanos::from_ms(300_000);

/// A client with an image.
pub struct Guest {
    pub image: Image,
    cluster: Cluster,
    pub handle: ClientHandle,
    pub done: Vec<Completion>,
    next_id: u64,
    /// The client is not run: it is cut off, or its machine sleeps.
    pub is_frozen: bool,
}

/// A cluster, and what uses it.
pub struct World {
    pub model: ModelCluster,
    pub guests: Vec<Option<Guest>>,
    tasks: Executor,
    timer: Timer,
    /// Clients that have nothing to do, if clients are used again.
    idle: Option<Idle>,
    procedures: u64,
}

type Idle = Rc<RefCell<Vec<(Cluster, ClientHandle)>>>;

impl World {
    pub fn new(seed: u64, delays: Delays) -> Self {
        let model = ModelCluster::new(seed, delays);
        model.add_pool("rbd");
        let (tasks, timer) = (Executor::default(), Timer::new());
        Self { model, guests: Vec::new(), tasks, timer, idle: None, procedures: 0 }
    }

    /// From now on, a client whose image is closed or whose procedure has ended gets more to do.
    /// The time of a step grows with the number of clients, so long runs need this.
    pub fn uses_clients_again(&mut self) {
        self.idle = Some(Idle::default());
    }

    fn client(&mut self) -> (Cluster, ClientHandle) {
        let idle = self.idle.as_ref().and_then(|idle| idle.borrow_mut().pop());
        idle.unwrap_or_else(|| self.model.client())
    }

    /// Lets everybody go on at the present time, then moves the time to the next event. False if
    /// there is none before `end`.
    pub fn step(&mut self, end: Nanos) -> bool {
        let now = self.model.now();
        self.timer.advance(now);
        let mut any = self.tasks.run();
        for guest in self.guests.iter_mut().flatten().filter(|guest| !guest.is_frozen) {
            let before = guest.done.len();
            guest.image.poll(now, &mut guest.done);
            any |= guest.done.len() > before;
        }
        if self.model.step(now) || any {
            return true;
        }
        let awake = self.guests.iter().flatten().filter(|guest| !guest.is_frozen);
        let deadlines = awake.filter_map(|guest| guest.image.deadline());
        let next = deadlines.chain(self.model.next_time()).chain(self.timer.deadline()).min();
        match next {
            Some(next) if next <= end => {
                self.model.step(next.max(Nanos(now.0 + 1)));
                true
            }
            _ => false,
        }
    }

    /// Runs for this long.
    pub fn run_for(&mut self, time: Nanos) {
        let end = self.model.now().plus(time);
        while self.model.now() < end && self.step(end) {}
        self.model.step(end);
    }

    /// Runs until `done`.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.model.now().plus(PATIENCE);
        while !done(self) {
            let went_on = self.step(end) && self.model.now() < end;
            assert!(went_on || done(self), "{what}: it never comes");
        }
    }

    /// Opens an image with a client of its own. Gives the number of the guest.
    pub fn begin_open(&mut self, spec: ImageSpec) -> usize {
        let (cluster, handle) = self.client();
        let image = Image::open(cluster.clone(), spec);
        let done = Vec::new();
        let guest = Guest { image, cluster, handle, done, next_id: 0, is_frozen: false };
        let free = self.guests.iter().position(Option::is_none).filter(|_| self.idle.is_some());
        if let Some(free) = free {
            self.guests[free] = Some(guest);
            return free;
        }
        self.guests.push(Some(guest));
        self.guests.len() - 1
    }

    pub fn open_with(&mut self, spec: ImageSpec) -> usize {
        let guest = self.begin_open(spec);
        self.run_until("opening", |world| world.guest(guest).image.phase() != Phase::Opening);
        assert_eq!(self.guest(guest).image.phase(), Phase::Open);
        guest
    }

    pub fn open(&mut self, image: &str) -> usize {
        self.open_with(spec(image))
    }

    pub fn guest(&mut self, guest: usize) -> &mut Guest {
        self.guests[guest].as_mut().expect("the guest lives")
    }

    pub fn size(&mut self, guest: usize) -> u64 {
        self.guest(guest).image.info().size_bytes
    }

    /// Submits a request.
    pub fn submit(
        &mut self,
        guest: usize,
        op: Op,
        offset: u64,
        len: u64,
        data: Bytes,
    ) -> RequestId {
        self.submit_flagged(guest, op, offset, len, data, false)
    }

    /// Submits a request; `no_hole`: zeroes keep their space.
    pub fn submit_flagged(
        &mut self,
        guest: usize,
        op: Op,
        offset: u64,
        len: u64,
        data: Bytes,
        no_hole: bool,
    ) -> RequestId {
        let now = self.model.now();
        let guest = self.guest(guest);
        guest.next_id += 1;
        let id = RequestId(guest.next_id);
        let request = Request {
            id,
            op,
            offset_bytes: offset,
            len_bytes: len as u32,
            flags: RequestFlags { no_hole, ..RequestFlags::default() },
            data,
            destination: Default::default(),
            queue: QueueId(0),
            stamps: Stamps::default(),
        };
        guest.image.submit(request, now);
        id
    }

    /// Takes the completion of a request, if it has come.
    pub fn take(&mut self, guest: usize, id: RequestId) -> Option<Result<Payload, BlockError>> {
        let done = &mut self.guest(guest).done;
        let index = done.iter().position(|completion| completion.id == id)?;
        Some(done.swap_remove(index).result)
    }

    fn wait(&mut self, guest: usize, id: RequestId) -> Result<Payload, BlockError> {
        let mut result = None;
        self.run_until("a completion", |world| {
            result = world.take(guest, id);
            result.is_some()
        });
        result.expect("it has come")
    }

    pub fn try_write(&mut self, guest: usize, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        let data = Bytes::copy_from_slice(data);
        let id = self.submit(guest, Op::Write, offset, data.len() as u64, data);
        self.wait(guest, id).map(drop)
    }

    pub fn write(&mut self, guest: usize, offset: u64, data: &[u8]) {
        self.try_write(guest, offset, data).expect("the write succeeds");
    }

    pub fn request(&mut self, guest: usize, op: Op, offset: u64, len: u64) -> Payload {
        let id = self.submit(guest, op, offset, len, Bytes::new());
        self.wait(guest, id).expect("the request succeeds")
    }

    pub fn read(&mut self, guest: usize, offset: u64, len: u64) -> Vec<u8> {
        bytes_of(&self.request(guest, Op::Read, offset, len))
    }

    /// Closes an image.
    pub fn close(&mut self, guest: usize) {
        self.guest(guest).image.close();
        self.run_until("closing", |world| world.guest(guest).image.phase() == Phase::Closed);
        let closed = self.guests[guest].take();
        if let (Some(idle), Some(Guest { cluster, handle, .. })) = (&self.idle, closed) {
            idle.borrow_mut().push((cluster, handle));
        }
    }

    /// A client is not run any more, and its watches are not renewed. It does not know.
    pub fn freeze(&mut self, guest: usize) {
        self.guest(guest).is_frozen = true;
        let client = self.guest(guest).handle.client();
        let now = self.model.now();
        self.model.with_store(|store| store.watches.client_gone(client, now));
    }

    /// The OSDs forget the watches of a client that lives.
    pub fn end_watches(&mut self, guest: usize) {
        let client = self.guest(guest).handle.client();
        let now = self.model.now();
        self.model.with_store(|store| {
            store.watches.client_gone(client, Nanos(0));
            store.watches.expire(now.max(Nanos::from_ms(31_000)));
        });
    }

    /// A frozen client goes on where it was.
    pub fn thaw(&mut self, guest: usize) {
        self.guest(guest).is_frozen = false;
    }

    /// A client dies.
    pub fn kill(&mut self, guest: usize) {
        self.guest(guest).handle.kill();
        self.guests[guest] = None;
    }

    /// Runs a procedure with the pool `rbd` in a client of its own, until it is done.
    pub fn manage<T: 'static, F>(&mut self, work: impl FnOnce(Rc<Pool>) -> F + 'static) -> T
    where
        F: Future<Output = T> + 'static,
    {
        let result = self.begin_manage(work);
        self.run_until("a procedure", |_| result.borrow().is_some());
        result.borrow_mut().take().expect("it is done")
    }

    /// As [`World::manage`], without waiting.
    pub fn begin_manage<T: 'static, F>(
        &mut self,
        work: impl FnOnce(Rc<Pool>) -> F + 'static,
    ) -> Rc<RefCell<Option<T>>>
    where
        F: Future<Output = T> + 'static,
    {
        self.begin_manage_in("", work)
    }

    /// As [`World::begin_manage`], in a namespace.
    pub fn begin_manage_in<T: 'static, F>(
        &mut self,
        namespace: &'static str,
        work: impl FnOnce(Rc<Pool>) -> F + 'static,
    ) -> Rc<RefCell<Option<T>>>
    where
        F: Future<Output = T> + 'static,
    {
        let (cluster, handle) = self.client();
        let idle = self.idle.clone();
        // A client that is used again makes other ids than the first time.
        self.procedures += u64::from(idle.is_some());
        let seed = handle.client() + (self.procedures << 20);
        let timer = self.timer.clone();
        let result = Rc::new(RefCell::new(None));
        let place = Rc::clone(&result);
        self.tasks.spawn(Box::pin(async move {
            let again = (cluster.clone(), handle.clone());
            let pool = Pool::open(cluster, timer, "rbd", namespace, seed).await;
            let done = work(Rc::new(pool.expect("the pool exists"))).await;
            *place.borrow_mut() = Some(done);
            if let Some(idle) = idle {
                idle.borrow_mut().push(again);
            }
        }));
        result
    }

    /// Runs a procedure with a client of its own, without waiting.
    pub fn begin_client<T: 'static, F>(
        &mut self,
        work: impl FnOnce(Cluster) -> F,
    ) -> Rc<RefCell<Option<T>>>
    where
        F: Future<Output = T> + 'static,
    {
        let (cluster, _handle) = self.client();
        let done = work(cluster);
        let result = Rc::new(RefCell::new(None));
        let place = Rc::clone(&result);
        self.tasks.spawn(Box::pin(async move { *place.borrow_mut() = Some(done.await) }));
        result
    }

    /// Carries out a request on an object of the pool `rbd` at once, as a person with tools.
    pub fn tamper(&mut self, object: &str, ops: ObjectOps) -> Reply {
        self.tamper_in("", object, ops)
    }

    /// As [`World::tamper`], in a namespace.
    pub fn tamper_in(&mut self, namespace: &str, object: &str, ops: ObjectOps) -> Reply {
        let address =
            EntityAddress { kind: AddressKind::Any, nonce: 1, socket: "10.9.9.9:0".parse().ok() };
        let caller = Caller { client: 1, address };
        let operation = Operation::new(ObjectName::new(PoolId(1), namespace, object), ops);
        let now = self.model.now();
        let reply = self.model.with_store(|store| store.execute(now, &caller, &operation));
        reply.expect("the request is executed")
    }

    /// The metadata of an image.
    pub fn info(&mut self, image: &str) -> Header {
        let image = image.to_owned();
        let header = self.manage(|pool| async move { pool.info(&image).await });
        header.expect("the image exists")
    }

    /// No object map denies an object.
    pub fn check_map(&mut self, image: &str) {
        let header = self.info(image);
        if !header.has_valid_object_map(SnapId::HEAD) {
            return;
        }
        let map = ObjectName::new(PoolId(1), "", &names::object_map(&header.id, SnapId::HEAD));
        self.model.with_store(|store| {
            let object = store.object(&map).expect("there is a map");
            let map = ObjectMap::decode(&object.head.data.read(0, 1 << 20)).expect("it is a map");
            let data_pool = header.data_pool.unwrap_or(PoolId(1));
            for number in 0..header.objects() + 20 {
                let name = ObjectName::new(data_pool, "", &names::data(&header.prefix, number));
                let exists = store.object(&name).is_some_and(|object| object.present().is_some());
                let denied = map.get(number) == ObjectState::Nonexistent;
                assert!(!exists || !denied, "object {number} exists, and the map denies it");
            }
        });
    }

    pub fn create(&mut self, name: &str, options: fieldstone_rbd::pool::CreateOptions) {
        let name = name.to_owned();
        let made: Result<String, RbdError> =
            self.manage(|pool| async move { pool.create(&name, &options).await });
        made.expect("the image is made");
    }
}

pub fn spec(image: &str) -> ImageSpec {
    ImageSpec { pool: "rbd".into(), image: image.into(), ..ImageSpec::default() }
}

pub fn bytes_of(payload: &Payload) -> Vec<u8> {
    let Payload::Data(pieces) = payload else { panic!("no data: {payload:?}") };
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeroes(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
    }
    bytes
}

/// Compares without printing all bytes.
pub fn assert_bytes(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "the lengths");
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    if let Some(at) = differs {
        panic!("byte {at} is {} and should be {}", found[at], expected[at]);
    }
}
