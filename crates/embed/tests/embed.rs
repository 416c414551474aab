//! Opens stores in the test's own process, and tests every kind of call.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{Backend, Completion, Info, Nanos, Ram, Request};
use fieldstone_buf::AlignedBuf;
use fieldstone_embed::{
    Answer, AttachError, BlockError, Bounds, CallerBuffer, CompletionQueue, DISCARD_BYTES_MAX,
    Device, Error, KIND, OnComplete, OpenError, Operation, Options, Queue, REQUEST_BYTES_MAX,
};
use fieldstone_host::{
    DeviceSpec, FrontendCounts, FrontendKind, Host, HostConfig, PARITY_MEMORY_BYTES,
    PAYLOAD_MEMORY_BYTES, Phase, RamSpec, Store, StoreIo, StoreSpec, frontends,
};
use fieldstone_uring::Caching;

const TIMEOUT: Duration = Duration::from_secs(30);

fn ram(options: &Options) -> Device {
    Device::open("ram:1M", options).expect("memory opens")
}

/// A device whose reads and flushes take `delay`.
fn slow(delay: &str, bounds: Bounds) -> Device {
    ram(&Options {
        layers: vec![format!("delay:read={delay},flush={delay}")],
        bounds,
        ..Options::default()
    })
}

fn write(offset_bytes: u64, data: &'static [u8]) -> Operation {
    Operation::Write { offset_bytes, data: Bytes::from_static(data), fua: false }
}

fn read(offset_bytes: u64, len_bytes: usize) -> Operation {
    Operation::Read { offset_bytes, len_bytes }
}

#[test]
fn devices_of_one_call_are_spread_over_the_cores() {
    let options = Options { cores: 2, ..Options::default() };
    let devices = Device::open_all(&["ram:1M", "ram:1M"], &options).expect("memory opens");
    // A receiver is called by the thread of its device's core.
    let core_of = |device: &Device| {
        let (to, from) = channel();
        let tell = move |answer: Answer| {
            answer.expect("written");
            to.send(std::thread::current().id()).expect("the test waits");
        };
        device.submit(write(0, b"stone"), OnComplete::call(tell)).expect("room");
        from.recv_timeout(TIMEOUT).expect("an answer")
    };
    assert_ne!(core_of(&devices[0]), core_of(&devices[1]));
    for device in devices {
        device.close().expect("stable");
    }
}

#[test]
fn what_is_written_to_a_file_is_there_when_it_is_opened_again() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("disk");
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("room");
    let target = format!("file:{}", path.display());
    let device = Device::open(&target, &Options::default()).expect("it opens");
    assert_eq!(device.size_bytes(), 1 << 20);
    // No range begins or ends at a block boundary, except the discard.
    let parts = [IoSlice::new(b"field"), IoSlice::new(b""), IoSlice::new(b"stone")];
    device.write_vectored(4093, &parts).expect("written");
    device.write(9000, &[0x55; 30_000]).expect("written");
    device.write_zeroes(10_001, 98).expect("zeroed");
    device.discard(16_384, 4096).expect("discarded");
    device.flush().expect("stable");
    let second = Device::open(&target, &Options::default());
    assert!(matches!(second, Err(OpenError::Store { .. })), "the file is locked");
    device.close().expect("stable");

    let options = Options { read_only: true, ..Options::default() };
    let device = Device::open(&target, &options).expect("it opens again");
    let (mut head, mut tail) = ([0; 3], [0; 9]);
    let mut buffers = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    device.read_vectored(4092, &mut buffers).expect("read");
    assert_eq!((&head, &tail), (b"\0fi", b"eldstone\0"));
    let mut all = vec![1; 30_000];
    device.read(9000, &mut all).expect("read");
    let zeroes = |at: usize| (10_001..10_099).contains(&at) || (16_384..20_480).contains(&at);
    for (at, byte) in (9000..).zip(&all) {
        assert_eq!(*byte, if zeroes(at) { 0 } else { 0x55 }, "at {at}");
    }
    assert_eq!(device.write(0, b"x"), Err(Error::Device(BlockError::ReadOnly)));
}

#[test]
fn reads_into_the_callers_memory_are_answered_when_the_bytes_are_there() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("disk");
    let content: Vec<u8> = (0..1_u32 << 20).map(|at| (at % 251) as u8).collect();
    std::fs::write(&path, &content).expect("room");
    let target = format!("file:{}", path.display());
    // A cache keeps the bytes of an answer. The caller's memory must come back all the same.
    for layer in ["cache:off", "cache:capacity=256K", "delay:read=2ms"] {
        let options = Options { layers: vec![layer.to_owned()], ..Options::default() };
        let device = Device::open(&target, &options).expect("it opens");
        // Aligned ranges and memory, and others.
        for (offset, skip, len) in
            [(0, 0, 4096), (8192, 0, 65_536), (100, 0, 8192), (4096, 8, 8192), (0, 0, 0)]
        {
            let mut memory = AlignedBuf::zeroed(skip + len);
            let start = NonNull::new(memory[skip..].as_mut_ptr()).expect("allocated");
            // SAFETY: `memory` lives until the answer, and this test does not use it meanwhile.
            let buffer = unsafe { CallerBuffer::new(start, len) };
            for _ in 0..3 {
                let (done, answered) = channel();
                let on_complete = OnComplete::call(move |answer| drop(done.send(answer)));
                let read = Operation::ReadInto { offset_bytes: offset as u64, buffer };
                device.submit(read, on_complete).expect("room");
                let answer = answered.recv_timeout(TIMEOUT).expect("answered");
                let data = answer.expect("read");
                let in_place = layer != "cache:capacity=256K" && skip == 0 && offset % 4096 == 0;
                assert!(!in_place || data.len_bytes() == 0, "{layer} {offset} {len}");
                data.scatter(&mut [IoSliceMut::new(&mut memory[skip..])]);
                assert!(memory[skip..] == content[offset..offset + len], "{layer} {offset} {len}");
                memory.fill(0);
            }
        }
        let mut memory = AlignedBuf::zeroed(4096);
        let past = device.read((1 << 20) - 1, &mut memory);
        assert!(matches!(past, Err(Error::Device(BlockError::OutOfRange { .. }))), "{past:?}");
        device.close().expect("closed");
    }
}

#[test]
fn what_cannot_be_done_has_a_typed_error() {
    let open = |target: &str, layers: &[&str]| {
        let layers = layers.iter().map(|text| (*text).to_owned()).collect();
        Device::open(target, &Options { layers, ..Options::default() }).err().expect("refused")
    };
    let unknown = open("rum:1M", &[]);
    assert!(matches!(unknown, OpenError::Target { .. }));
    assert!(unknown.to_string().starts_with("rum:1M: "), "{unknown}");
    assert!(matches!(open("ram:100", &[]), OpenError::Target { .. }));
    assert!(matches!(open("ram:1M", &["cachet:on=1"]), OpenError::Layer(_)));
    assert!(matches!(open("file:/nowhere/at/all", &[]), OpenError::Store { .. }));

    let device = ram(&Options::default());
    let past = device.read((1 << 20) - 1, &mut [0; 2]);
    assert!(matches!(past, Err(Error::Device(BlockError::OutOfRange { .. }))), "{past:?}");
    let far = device.write(u64::MAX, b"xy");
    assert!(matches!(far, Err(Error::Device(BlockError::OutOfRange { .. }))), "{far:?}");
    let long =
        device.submit(read(0, REQUEST_BYTES_MAX + 1), OnComplete::call(|_| panic!("refused")));
    assert!(matches!(long, Err(Error::TooLong { .. })), "{long:?}");
    assert!(matches!(device.discard(0, DISCARD_BYTES_MAX + 1), Err(Error::TooLong { .. })));
    assert_eq!(device.read(7, &mut []), Ok(()), "nothing is read at once");

    Queue::close(&device).expect("closed");
    assert_eq!(device.flush(), Err(Error::Closed));
    assert_eq!(device.submit(Operation::Flush, OnComplete::call(|_| ())), Err(Error::Closed));
    assert_eq!(device.wait_for_room(0, TIMEOUT), Err(Error::Closed));
    device.close().expect("twice is well");
}

#[test]
fn a_queue_takes_as_much_as_it_is_bound_to_and_closing_answers_it() {
    let device = slow("300ms", Bounds { requests: 3, bytes: 10_000 });
    let answered = Arc::new(AtomicUsize::new(0));
    let on_complete = || {
        let answered = Arc::clone(&answered);
        OnComplete::call(move |answer: Answer| {
            assert_eq!(answer.map(|data| data.len_bytes()), Ok(4000));
            answered.fetch_add(1, Ordering::Relaxed);
        })
    };
    for at in [0, 1] {
        device.submit(read(at, 4000), on_complete()).expect("room");
    }
    let large = device.submit(read(0, 4000), on_complete());
    assert_eq!(large, Err(Error::Full), "12,000 bytes");
    assert_eq!(device.wait_for_room(4000, Duration::from_millis(1)), Err(Error::Full));
    device.wait_for_room(4000, TIMEOUT).expect("those before are answered");
    assert!(answered.load(Ordering::Relaxed) >= 1 || device.wait_for_room(0, TIMEOUT).is_ok());
    device.submit(read(2, 4000), on_complete()).expect("room");
    Queue::close(&device).expect("closed");
    assert_eq!(answered.load(Ordering::Relaxed), 3, "closing waits for answers");

    let device = slow("300ms", Bounds { requests: 3, bytes: 10_000 });
    for _ in 0..3 {
        device.submit(Operation::Flush, OnComplete::call(drop)).expect("room");
    }
    device.close().expect("all is answered");
}

#[test]
fn many_threads_share_a_queue_and_blocking_callers_wait_for_room() {
    let device =
        ram(&Options { bounds: Bounds { requests: 2, bytes: 1 << 20 }, ..Options::default() });
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let device = &device;
            scope.spawn(move || {
                let base = u64::from(thread) * 65_536;
                for round in 0..200u8 {
                    let bytes = [thread ^ round; 700];
                    device.write(base + u64::from(round), &bytes).expect("written");
                    let mut back = [0; 700];
                    device.read(base + u64::from(round), &mut back).expect("read");
                    assert_eq!(back, bytes);
                }
            });
        }
    });
    device.close().expect("closed");
}

#[test]
fn a_callback_may_submit_and_must_not_wait() {
    const ROUNDS: usize = 1000;
    let device = Arc::new(ram(&Options::default()));
    let (done, all_done) = channel();
    /// Submits the next write from the callback of the last one.
    fn step(device: &Arc<Device>, left: usize, done: std::sync::mpsc::Sender<Answer>) {
        let again = Arc::clone(device);
        let on_complete = OnComplete::call(move |answer| {
            assert_eq!(again.flush(), Err(Error::OnCore));
            assert_eq!(Queue::close(&again), Err(Error::OnCore));
            if left == 0 {
                drop(done.send(answer));
            } else {
                step(&again, left - 1, done);
            }
        });
        device.submit(write(left as u64, b"x"), on_complete).expect("room");
    }
    step(&device, ROUNDS, done);
    let last = all_done.recv_timeout(TIMEOUT).expect("the last one");
    assert_eq!(last.map(|data| data.len_bytes()), Ok(0));
    device.submit(Operation::Flush, OnComplete::call(|_| panic!("of the test"))).expect("room");
    device.flush().expect("the core goes on");
    // The callback is the last owner of the device.
    let (done, is_done) = channel();
    let weak = Arc::downgrade(&device);
    let owner = Arc::clone(&device);
    let on_complete = OnComplete::call(move |_| {
        drop(owner);
        let _ = done.send(());
    });
    device.submit(read(0, 1), on_complete).expect("room");
    drop(device);
    is_done.recv_timeout(TIMEOUT).expect("no core waits for itself");
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_callback_may_open_a_device_but_not_wait_for_it() {
    let device = ram(&Options::default());
    let (done, opened) = channel();
    let on_complete = OnComplete::call(move |_| {
        let other = ram(&Options::default());
        let _ = done.send((other.write(0, b"x"), other));
    });
    device.submit(Operation::Flush, on_complete).expect("room");
    let (refused, other) = opened.recv_timeout(TIMEOUT).expect("it opens");
    assert_eq!(refused, Err(Error::OnCore));
    other.write(0, b"x").expect("written by another thread");
    other.close().expect("closed");
    device.close().expect("closed");
}

#[test]
fn a_completion_queue_is_readable_while_answers_wait() {
    let readable = |queue: &CompletionQueue, wait_ms: i32| {
        let fd = queue.as_fd().as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one entry, as the count says.
        unsafe { libc::poll(&raw mut poll, 1, wait_ms) == 1 }
    };
    let device = ram(&Options::default());
    device.write(0, b"0123456789").expect("written");
    let queue = CompletionQueue::new(3).expect("descriptors");
    assert!(!readable(&queue, 0));
    for tag in [5, 6, 7] {
        device.submit(read(tag, 1), queue.on_complete(tag)).expect("a place");
    }
    let refused = device.submit(read(0, 1), queue.on_complete(8));
    assert_eq!(refused, Err(Error::NoPlace), "three are not taken");
    device.wait_for_room(1, Duration::ZERO).expect("the queue itself has room");
    let mut done = Vec::new();
    let began = Instant::now();
    while done.len() < 3 {
        assert!(began.elapsed() < TIMEOUT && readable(&queue, 30_000));
        assert!(queue.take(2, &mut done) <= 2);
    }
    assert!(!readable(&queue, 0), "all are taken");
    let tags: BTreeSet<u64> = done.iter().map(|done| done.tag).collect();
    assert_eq!(tags, BTreeSet::from([5, 6, 7]));
    for done in &done {
        let mut byte = [0];
        let copied =
            done.answer.as_ref().map(|data| data.scatter(&mut [IoSliceMut::new(&mut byte)]));
        assert_eq!((copied, u64::from(byte[0] - b'0')), (Ok(1), done.tag));
    }
    assert_eq!(queue.wait(Duration::from_millis(1), 9, &mut done), 0);
    device.submit(Operation::Flush, queue.on_complete(9)).expect("there is room again");
    assert_eq!(queue.wait(TIMEOUT, 9, &mut done), 1);
    device.close().expect("closed");
}

#[test]
fn a_descriptor_asked_for_late_tells_of_the_answers_that_wait() {
    let device = ram(&Options::default());
    let queue = CompletionQueue::new(4).expect("descriptors");
    for tag in 0..2 {
        device.submit(read(0, 1), queue.on_complete(tag)).expect("a place");
    }
    let began = Instant::now();
    let mut done = Vec::new();
    while done.len() < 2 {
        assert!(began.elapsed() < TIMEOUT);
        queue.wait(TIMEOUT, 4, &mut done);
    }
    device.submit(read(0, 1), queue.on_complete(2)).expect("a place");
    device.flush().expect("all before it are answered");
    let mut poll = libc::pollfd { fd: queue.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one entry, as the count says.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 30_000) }, 1);
    assert_eq!(queue.take(4, &mut done), 1);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 0, "it is empty now");
    device.close().expect("closed");
}

#[test]
fn every_thread_that_waits_gets_answers() {
    let device = Arc::new(ram(&Options::default()));
    let queue = CompletionQueue::new(64).expect("descriptors");
    let taken = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (queue, taken) = (Arc::clone(&queue), Arc::clone(&taken));
            std::thread::spawn(move || {
                let mut done = Vec::new();
                while taken.load(Ordering::SeqCst) < 3_000 {
                    done.clear();
                    let count = queue.wait(Duration::from_millis(200), 1, &mut done);
                    taken.fetch_add(count, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let began = Instant::now();
    for tag in 0..3_000 {
        while device.submit(read(0, 1), queue.on_complete(tag)).is_err() {
            std::thread::yield_now();
        }
    }
    threads.into_iter().for_each(|thread| thread.join().expect("ended"));
    assert!(began.elapsed() < TIMEOUT, "no answer waited for the end of a wait");
    assert_eq!(taken.load(Ordering::SeqCst), 3_000);
}

#[test]
fn a_wait_may_have_no_end() {
    let device = ram(&Options::default());
    let queue = CompletionQueue::new(1).expect("descriptors");
    device.submit(read(0, 1), queue.on_complete(3)).expect("a place");
    let mut done = Vec::new();
    assert_eq!(queue.wait(Duration::MAX, 1, &mut done), 1);
    assert_eq!(device.wait_for_room(1, Duration::MAX), Ok(()));
    device.close().expect("closed");
}

#[test]
fn a_batch_is_accepted_up_to_the_first_refusal() {
    let device =
        ram(&Options { bounds: Bounds { requests: 3, ..Bounds::default() }, ..Options::default() });
    let queue = CompletionQueue::new(16).expect("descriptors");
    // The core may answer none of them while the batch holds the lock.
    let mut batch: Vec<_> = (0..5).map(|tag| (read(0, 1), queue.on_complete(tag))).collect();
    assert_eq!(device.submit_batch(&mut batch), Err(Error::Full));
    assert_eq!(batch.len(), 2);
    let mut done = Vec::new();
    while done.len() < 3 {
        assert!(queue.wait(TIMEOUT, 16, &mut done) > 0);
    }
    device.submit_batch(&mut batch).expect("there is room again");
    while done.len() < 5 {
        assert!(queue.wait(TIMEOUT, 16, &mut done) > 0);
    }
    assert!(batch.is_empty());
    let tags: BTreeSet<u64> = done.iter().map(|done| done.tag).collect();
    assert_eq!(tags, (0..5).collect());
    device.close().expect("closed");
}

fn host(frontends: Vec<&'static FrontendKind>) -> Host {
    Host::start(HostConfig {
        cores: 2,
        pin: false,
        caching: Caching::Buffered,
        verify_payload: false,
        payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
        parity_memory_bytes: PARITY_MEMORY_BYTES,
        frontends,
        nodes: Vec::new(),
    })
    .expect("started")
}

fn attach(host: &Host, layers: &str) -> Result<Queue, AttachError> {
    let mut options = LayerOptions::default();
    options.add(layers).expect("layers");
    let store = Box::new(RamSpec { size_bytes: 1 << 20 });
    let spec = DeviceSpec { name: "ram".to_owned(), store, layers: options };
    let (device, opened) = host.handle().open_device(spec);
    let info = opened.recv_timeout(TIMEOUT).expect("answered").expect("opened");
    Queue::attach(host.handle(), device, info, Bounds::default())
}

#[test]
fn queues_of_a_running_host_stand_beside_its_other_front_ends() {
    let host = host(vec![&frontends::nbd::KIND, &KIND]);
    let queues: Vec<Queue> =
        (0..4).map(|_| attach(&host, "cache:off").expect("it has the front-end")).collect();
    for (queue, byte) in queues.iter().zip(1..) {
        queue.write(77, &[byte]).expect("written");
    }
    for (queue, byte) in queues.iter().zip(1..) {
        let mut back = [0];
        queue.read(77, &mut back).expect("read");
        assert_eq!(back, [byte], "each has its own device");
    }
    let cores = host.handle().snapshot(false);
    let counts = |core: usize| cores[core].frontend(KIND.name).expect("it tells").counts;
    assert_eq!([counts(0), counts(1)], [FrontendCounts { connections: 2, accepted: 2 }; 2]);
    assert!(host.handle().drain(TIMEOUT), "nothing is in flight");
    assert_eq!(queues[0].flush(), Err(Error::Device(BlockError::ShuttingDown)));
    drop(queues);
    host.stop().expect("no core failed");
}

/// A store in memory whose size is in the shared number.
#[derive(Clone, Debug)]
struct Growing(Arc<AtomicU64>);

struct GrowingStore(Ram, Growing);

impl StoreSpec for Growing {
    fn open(self: Box<Self>, _: &mut StoreIo<'_>) -> Box<dyn Store> {
        Box::new(GrowingStore(Ram::new(4 << 20), *self))
    }
}

impl Backend for GrowingStore {
    fn info(&self) -> Info {
        Info { size_bytes: self.1.0.load(Ordering::Relaxed), ..self.0.info() }
    }
    fn submit(&mut self, request: Request, now: Nanos) {
        self.0.submit(request, now);
    }
    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.0.poll(now, out);
    }
    fn deadline(&self) -> Option<Nanos> {
        self.0.deadline()
    }
}

impl Store for GrowingStore {
    fn kind(&self) -> &'static str {
        "growing"
    }
    fn phase(&self) -> Phase {
        Phase::Serving
    }
    fn close(&mut self) {}
}

#[test]
fn a_queue_tells_the_present_size_of_its_device() {
    let host = host(vec![&KIND]);
    let size = Arc::new(AtomicU64::new(1 << 20));
    let store = Box::new(Growing(Arc::clone(&size)));
    let layers = LayerOptions::default();
    let spec = DeviceSpec { name: "growing".to_owned(), store, layers };
    let (device, opened) = host.handle().open_device(spec);
    let old = opened.recv_timeout(TIMEOUT).expect("answered").expect("opened");
    let attach = |info: &Info| {
        let mut info = info.clone();
        info.read_only = true;
        Queue::attach(host.handle(), device, info, Bounds::default()).expect("attached")
    };
    let queue = attach(&old);
    assert_eq!(queue.size_bytes(), 1 << 20);
    let mut byte = [0];
    let past_the_end = queue.read(1 << 20, &mut byte);
    assert!(matches!(past_the_end, Err(Error::Device(_))), "{past_the_end:?}");
    size.store(2 << 20, Ordering::Relaxed);
    // The device looks at its size whenever it runs.
    let start = Instant::now();
    while queue.size_bytes() != 2 << 20 {
        assert!(start.elapsed() < TIMEOUT, "the size stays {}", queue.size_bytes());
        queue.read(0, &mut byte).expect("read");
    }
    queue.read(1 << 20, &mut byte).expect("read");
    assert!(queue.info().read_only, "the caller has opened it so");
    // A queue whose caller asked before the change.
    assert_eq!(attach(&old).size_bytes(), 2 << 20);
    drop(queue);
    host.stop().expect("no core failed");
}

#[test]
fn a_host_that_ends_answers_what_is_under_way() {
    let host = host(vec![&KIND]);
    let queue = attach(&host, "delay:read=1000s").expect("it has the front-end");
    let answers = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..5 {
        let answers = Arc::clone(&answers);
        let on_complete =
            OnComplete::call(move |answer| answers.lock().expect("no panic").push(answer));
        queue.submit(read(0, 10), on_complete).expect("room");
    }
    host.stop().expect("no core failed");
    assert_eq!(*answers.lock().expect("no panic"), vec![Err(Error::Closed); 5]);
    assert_eq!(queue.flush(), Err(Error::Closed));
    queue.close().expect("nothing is under way");
}

#[test]
fn a_host_without_the_front_end_says_so() {
    let host = host(frontends::KINDS.to_vec());
    let error = attach(&host, "cache:off").err().expect("NBD alone");
    assert_eq!(error.to_string(), "this host has no front-end \"embed\"");
    host.stop().expect("no core failed");
}

#[path = "../examples/checksum.rs"]
mod checksum;

/// The signal masks of the threads of this process with this name.
fn blocked_signals(name: &str) -> Vec<u64> {
    let mut masks = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").expect("Linux").flatten() {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        if field("Name:").is_some_and(|found| found.trim() == name) {
            let mask = field("SigBlk:").expect("every thread has a mask");
            masks.push(u64::from_str_radix(mask.trim(), 16).expect("hexadecimal"));
        }
    }
    masks
}

#[test]
fn the_core_takes_no_signals_of_the_process() {
    let _device = ram(&Options::default());
    let bit = |signal: i32| 1u64 << (signal - 1);
    let cores = blocked_signals("core 0");
    assert!(!cores.is_empty());
    for mask in cores {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD, libc::SIGALRM] {
            assert_ne!(mask & bit(signal), 0, "{signal} in {mask:x}");
        }
        assert_eq!(mask & bit(libc::SIGSEGV), 0, "{mask:x}");
    }
}

#[test]
fn opening_a_device_leaves_the_limit_on_open_files_alone() {
    // The tests of this program share the process. This is enough for all of them.
    const FEW: u64 = 512;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit.rlim_cur = FEW.min(limit.rlim_max);
    // SAFETY: `limit` is initialised.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let device = ram(&Options::default());
    assert_eq!(fieldstone_uring::open_files().expect("readable"), limit.rlim_cur);
    device.close().expect("closed");
}

#[test]
fn the_example_reads_every_byte_in_order() {
    let folder = tempfile::tempdir().expect("temp");
    let sum = |bytes: &[u8]| {
        let path = folder.path().join("disk");
        std::fs::write(&path, bytes).expect("room");
        checksum::checksum(&format!("file:{}", path.display()), &[]).expect("read")
    };
    let mut bytes = vec![7u8; (20 << 20) + 512];
    let before = sum(&bytes);
    assert_eq!((before.0, before), (bytes.len() as u64, sum(&bytes)));
    bytes.swap(0, (20 << 20) + 511);
    assert_eq!(before, sum(&bytes), "both were the same");
    bytes[(20 << 20) + 511] = 8;
    assert_ne!(before, sum(&bytes));
    // The test binary has its own `main`, so this uses the one of the example.
    let _its_main: fn() -> Result<(), Box<dyn std::error::Error>> = checksum::main;
}
