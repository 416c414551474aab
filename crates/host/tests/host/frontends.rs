//! Tests of a front-end from outside the crate. Sockets, events, mail and wake-ups reach it,
//! completions return to their submitter, and a drain waits for it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{BlockError, Completion, Info, Op, Payload, Request, RequestId};
use fieldstone_host::{
    Destination, DeviceId, DeviceSpec, Frontend, FrontendCounts, FrontendId, FrontendIo,
    FrontendKind, Host, HostConfig, PARITY_MEMORY_BYTES, PAYLOAD_MEMORY_BYTES, RamSpec, Submitter,
};
use fieldstone_uring::{Address, Caching, Event, Listener, Socket};

use crate::common::TIMEOUT;

/// Answers requests that come as mail, and sends one byte to each socket.
const KIND: FrontendKind = FrontendKind {
    name: "probe",
    about: "nobody",
    make: |_| Box::new(Probe::default()),
    offer: None,
};

/// A request for a device, and the channel for its answer.
struct Ask {
    device: DeviceId,
    request: Request,
    answer: Sender<Completion>,
}

#[derive(Default)]
struct Probe {
    asked: Vec<Ask>,
    /// Requests that devices have not answered, by the place of their submitter.
    open: Vec<Option<Sender<Completion>>>,
    answered: Vec<(Sender<Completion>, Completion)>,
    sockets: Vec<Socket>,
    woken: u64,
    draining: bool,
}

impl Frontend for Probe {
    fn counts(&self) -> FrontendCounts {
        FrontendCounts { connections: self.sockets.len(), accepted: self.woken }
    }

    fn in_flight(&self) -> usize {
        self.open.iter().flatten().count() + self.answered.len()
    }

    fn accept(&mut self, socket: Socket, io: &mut FrontendIo<'_>) {
        let place = u32::try_from(self.sockets.len()).expect("few");
        let token = io.token(place);
        io.reactor.send(&socket, vec![Bytes::from_static(b"!")], token);
        self.sockets.push(socket);
    }

    /// The byte was sent.
    fn event(&mut self, index: u32, event: Event, io: &mut FrontendIo<'_>) {
        assert!(matches!(event.result, Ok(1)), "{:?}", event.result);
        assert_eq!(index, 0);
        io.reactor.close(self.sockets.remove(0));
    }

    fn mail(&mut self, mail: fieldstone_host::store::Mail, _: &mut FrontendIo<'_>) {
        self.asked.push(*mail.downcast().expect("only questions are sent"));
    }

    fn wake(&mut self, index: u32, _: &mut FrontendIo<'_>) {
        self.woken += u64::from(index);
    }

    fn device_changed(&mut self, _: DeviceId, _: &Info, _: &mut FrontendIo<'_>) {}

    fn complete(&mut self, to: Submitter, completion: Completion) {
        assert_eq!(to.generation, 7 + to.place);
        let asker = self.open[to.place as usize].take().expect("answered once");
        self.answered.push((asker, completion));
    }

    fn submit(&mut self, io: &mut FrontendIo<'_>) -> bool {
        let any = !self.asked.is_empty();
        for Ask { device, request, answer } in self.asked.drain(..) {
            if self.draining {
                let refused = Completion::of(&request, Err(BlockError::ShuttingDown));
                self.answered.push((answer, refused));
                continue;
            }
            let place = u32::try_from(self.open.len()).expect("few");
            self.open.push(Some(answer));
            io.submit(Submitter { place, generation: 7 + place }, device, request);
        }
        any
    }

    fn flush(&mut self, _: &mut FrontendIo<'_>) -> bool {
        for (asker, completion) in self.answered.drain(..) {
            drop(asker.send(completion));
        }
        false
    }

    fn drain(&mut self) {
        self.draining = true;
    }

    fn close(&mut self, _: &mut FrontendIo<'_>) {
        self.open.clear();
    }
}

fn start(cores: usize) -> Host {
    start_with(cores, &[])
}

/// Starts a host with NBD, the probe, and `more` front-ends.
pub fn start_with(cores: usize, more: &[&'static FrontendKind]) -> Host {
    let mut frontends = vec![&fieldstone_host::frontends::nbd::KIND, &KIND];
    frontends.extend_from_slice(more);
    Host::start(HostConfig {
        cores,
        pin: false,
        caching: Caching::Buffered,
        verify_payload: false,
        payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
        parity_memory_bytes: PARITY_MEMORY_BYTES,
        // The probe is not the only front-end, and not the first.
        frontends,
        nodes: Vec::new(),
    })
    .expect("started")
}

/// Opens a device in memory.
pub fn open(host: &Host) -> DeviceId {
    let store = Box::new(RamSpec { size_bytes: 1 << 20 });
    let spec = DeviceSpec { name: "ram".to_owned(), store, layers: LayerOptions::default() };
    let (device, opened) = host.handle().open_device(spec);
    opened.recv_timeout(TIMEOUT).expect("answered").expect("opened");
    device
}

pub fn request(op: Op, id: u64, data: &'static [u8]) -> Request {
    Request {
        id: RequestId(id),
        op,
        offset_bytes: 4096,
        len_bytes: 4,
        flags: Default::default(),
        data: Bytes::from_static(data),
        destination: Default::default(),
        queue: Default::default(),
        stamps: Default::default(),
    }
}

/// Sends a request from every core, and returns the channel for the answers.
pub fn ask(
    host: &Host,
    probe: FrontendId,
    device: DeviceId,
    request: &Request,
) -> Receiver<Completion> {
    let (answer, answers) = channel();
    let taken = host.handle().mail_frontend(probe, || {
        Box::new(Ask { device, request: request.clone(), answer: answer.clone() })
    });
    assert!(taken, "a core hangs");
    answers
}

#[test]
fn requests_of_every_core_come_back_to_who_asked() {
    let host = start(2);
    let device = open(&host);
    let probe = host.handle().frontend("probe").expect("it was named");
    for completion in ask(&host, probe, device, &request(Op::Write, 1, b"abcd")) {
        assert_eq!(completion.id, RequestId(1));
        assert_eq!(completion.result, Ok(Payload::None));
    }
    let answers: Vec<_> = ask(&host, probe, device, &request(Op::Read, 2, b"")).iter().collect();
    assert_eq!(answers.len(), 2, "each core has a front-end of its own");
    for completion in answers {
        let Ok(Payload::Data(pieces)) = completion.result else { panic!("no data") };
        assert_eq!(pieces.as_slice(), [fieldstone_block::Piece::Data(Bytes::from_static(b"abcd"))]);
    }
    assert!(host.handle().drain(TIMEOUT), "nothing is in flight");
    for completion in ask(&host, probe, device, &request(Op::Read, 3, b"")) {
        assert_eq!(completion.result, Err(BlockError::ShuttingDown));
    }
    host.stop().expect("no core failed");
}

/// Connects to the probe at `path`, and takes its byte.
pub fn check_greeting(path: &Path) {
    let mut stream = UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let mut greeting = Vec::new();
    stream.read_to_end(&mut greeting).expect("closed in order");
    assert_eq!(greeting, b"!");
}

#[test]
fn sockets_and_wakeups_reach_the_front_end_that_they_are_for() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("s");
    let host = start(1);
    let device = open(&host);
    let handle = host.handle();
    let probe = handle.frontend("probe").expect("it was named");
    assert!(handle.frontend("smoke signals").is_err());
    let listener = Listener::bind(&Address::Unix(path.clone())).expect("free");
    handle.listen(listener, Destination::Frontend(probe));
    check_greeting(&path);
    for index in [40, 2] {
        drop(handle.frontend_mailer(probe, device).wake(index).expect("it runs"));
    }
    let mut cores = handle.snapshot(false);
    let core = cores.pop().expect("one");
    let counts = core.frontend("probe").expect("it tells").counts;
    assert_eq!(counts, FrontendCounts { connections: 0, accepted: 42 });
    let nbd = core.frontend("nbd").expect("it tells");
    assert_eq!((nbd.counts, nbd.in_flight), (FrontendCounts::default(), 0));
    host.stop().expect("no core failed");
}
