//! The client's side: a session with the service, and the thread that keeps one for a volume.
//!
//! The thread asks for the capabilities that the volume wants. Each second, it tells how the volume
//! is, asks what has changed, and carries out calls of the pool. If the service is lost, it
//! connects again, to any of the credential's addresses, after a pause that doubles up to 2 s.
//! Meanwhile the volume works with the capability that it has.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use fieldstone_block::OpenFailure;
use fieldstone_codes::Profile;
use fieldstone_host::{Issuer, IssuerMail, Mailer, NodeDirectory, NodePlace};
use fieldstone_proto::{
    Encode, Epoch, KeyGeneration, NodeIndex, SessionKey, Side, Strategy, VolumeId,
};
use fieldstone_uring::Address;

use super::lines::{Sealed, hex, number, read_line};
use super::{Hello, Layout, NodeAddresses, Request, Response, VERSION, Welcome};
use crate::admission::Credential;
use crate::client_limits::Timed;
use crate::pool::random;
use crate::report::VolumeReport;
use crate::running::PooledVolume;
use crate::running::client_volumes::{ClientAnswer, ClientCall};
use crate::runtime::{DeviceName, Runtime};

/// How long the service has to accept a connection, and to welcome the client.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long the service has to answer a request. It may have to wait for nodes that do not answer.
const SERVICE_LIMIT: Duration = Duration::from_secs(15);
/// How often the client asks what has changed.
pub(crate) const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// How often, while the volume does not serve yet.
const OPENING_WATCH_PERIOD: Duration = Duration::from_millis(200);
/// Longest report on a volume, as text. A message has room for it and for other news.
const REPORT_BYTES_MAX: usize = 48 << 10;
/// The pauses before the client connects again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Why the service does not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The client may not do it, now and later.
    #[error("the metadata service refuses: {0}")]
    Refused(String),
    /// It may be possible later.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for MetadataError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<MetadataError> for OpenFailure {
    fn from(error: MetadataError) -> Self {
        match error {
            MetadataError::Refused(_) => Self::lasting(error.to_string()),
            MetadataError::Failed(_) => Self::passing(error.to_string()),
        }
    }
}

/// A session with a metadata service.
pub struct MetadataClient {
    reader: BufReader<Timed<TcpStream>>,
    writer: Timed<TcpStream>,
    sealed: Sealed,
    address: String,
}

impl MetadataClient {
    /// Connects to the first of the credential's addresses where a service of the pool answers.
    ///
    /// # Errors
    /// No service answers, or the pool does not admit the client.
    pub fn connect(credential: &Credential) -> Result<Self, MetadataError> {
        Self::connect_from(credential, 0)
    }

    /// The same. Begins with the address of this index.
    fn connect_from(credential: &Credential, first: usize) -> Result<Self, MetadataError> {
        let mut failures = Vec::new();
        let addresses = &credential.metadata;
        for address in addresses.iter().cycle().skip(first).take(addresses.len()) {
            match Self::connect_to(credential, address) {
                Ok(session) => return Ok(session),
                Err(MetadataError::Failed(error)) => failures.push(format!("{address}: {error:#}")),
                Err(refused) => return Err(refused),
            }
        }
        let failures = failures.join("; ");
        Err(anyhow!("no metadata service can be used: {failures}").into())
    }

    fn connect_to(credential: &Credential, address: &str) -> Result<Self, MetadataError> {
        let (mut session, by_client) = Self::greet(credential, address)?;
        let text = session.read(CONNECT_LIMIT)?;
        let welcome = serde_json::from_str(&text).context("the answer is not understood");
        let by_service = match welcome? {
            Welcome::Random(by_service) => number(&by_service)?,
            Welcome::Refused(reason) => return Err(MetadataError::Refused(reason)),
            Welcome::OtherPool(reason) | Welcome::Failed(reason) => {
                return Err(anyhow!(reason).into());
            }
        };
        let Credential { pool, client, secret, .. } = credential;
        let key = SessionKey::derive(secret, *pool, client, (by_client, by_service));
        session.sealed = Sealed::new(key, Side::Client);
        Ok(session)
    }

    /// Connects, and says who the client is.
    fn greet(credential: &Credential, address: &str) -> anyhow::Result<(Self, u128)> {
        let plain = address.strip_prefix("tcp:").unwrap_or(address);
        let found = plain.to_socket_addrs().context("an address has the form HOST:PORT")?;
        let mut connected = Err(anyhow!("the name has no address"));
        for address in found {
            connected = TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(From::from);
            if connected.is_ok() {
                break;
            }
        }
        let line = Arc::new(connected?);
        line.set_nodelay(true)?;
        let by_client = random()?;
        let hello = Hello {
            version: VERSION,
            pool: credential.pool.to_string(),
            client: credential.client.clone(),
            random: hex(by_client),
        };
        let mut writer = Timed::new(&line, CONNECT_LIMIT);
        writer.write_all((serde_json::to_string(&hello)? + "\n").as_bytes())?;
        // Replaced as soon as the service has answered.
        let key = SessionKey::derive(&credential.secret, credential.pool, "", (0, 0));
        let reader = BufReader::new(Timed::new(&line, SERVICE_LIMIT));
        let sealed = Sealed::new(key, Side::Client);
        Ok((Self { reader, writer, sealed, address: address.to_owned() }, by_client))
    }

    fn read(&mut self, limit: Duration) -> anyhow::Result<String> {
        self.reader.get_mut().limit(limit);
        let line = read_line(&mut self.reader).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                anyhow!("it does not answer within {limit:?}")
            }
            _ => error.into(),
        })?;
        line.context("it has closed the connection")
    }

    fn ask(&mut self, request: &Request) -> Result<Response, MetadataError> {
        let response = self.exchange(request).with_context(|| self.address.clone())?;
        match response {
            Response::Refused { reason } => Err(MetadataError::Refused(reason)),
            Response::Failed { reason } => Err(anyhow!(reason).into()),
            other => Ok(other),
        }
    }

    fn exchange(&mut self, request: &Request) -> anyhow::Result<Response> {
        self.writer.limit(SERVICE_LIMIT);
        self.writer.write_all(self.sealed.seal(request)?.as_bytes())?;
        let text = self.read(SERVICE_LIMIT)?;
        if let Some(response) = self.sealed.open(&text)? {
            return Ok(response);
        }
        // A service that has another secret of the client cannot seal its refusal.
        match serde_json::from_str(&text) {
            Ok(Welcome::Refused(reason)) => Ok(Response::Refused { reason }),
            _ => Err(anyhow!("the seal of an answer is wrong")),
        }
    }

    /// Finds a volume. The requests that follow are about this one. `instance` tells processes of
    /// the client apart.
    ///
    /// # Errors
    /// There is no such volume, the client may not open it, or the service or its nodes fail.
    pub fn open(&mut self, volume: &str, instance: u128) -> Result<Layout, MetadataError> {
        let (volume, instance) = (volume.to_owned(), hex(instance));
        match self.ask(&Request::Open { volume, instance })? {
            Response::Layout(layout) => Ok(layout),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Gets a capability for an epoch of the volume, as mail for the volume's store.
    ///
    /// # Errors
    /// The client is not admitted any more, or the service fails.
    pub fn issue(&mut self, epoch: Epoch) -> Result<IssuerMail, MetadataError> {
        match self.ask(&Request::Issue { epoch: epoch.0 })? {
            Response::Issued { capability, lifetime_ns } => {
                let capability = capability.capability()?;
                Ok(IssuerMail::Issued { capability, lifetime_ns })
            }
            other => Err(out_of_turn(&other)),
        }
    }

    /// Tells the service about the volume, and asks what has changed.
    ///
    /// # Errors
    /// As [`MetadataClient::issue`].
    fn watch(&mut self, told: News) -> Result<Present, MetadataError> {
        let News { oldest, report, answers } = told;
        let oldest = oldest.map(|oldest| oldest.0);
        match self.ask(&Request::Watch { oldest, report, answers })? {
            Response::Present { generation, nodes, calls } => {
                Ok(Present { signs: KeyGeneration(generation), nodes, calls })
            }
            other => Err(out_of_turn(&other)),
        }
    }
}

/// What a client tells the service.
#[derive(Debug, Default)]
struct News {
    /// The oldest generation of the secret that the volume still uses, if it has changed.
    oldest: Option<KeyGeneration>,
    /// The report on the volume, if it has changed.
    report: Option<serde_json::Value>,
    answers: Vec<ClientAnswer>,
}

/// What the service tells a client.
#[derive(Debug)]
struct Present {
    /// The generation that signs.
    signs: KeyGeneration,
    /// The addresses of the nodes, if they have changed.
    nodes: Option<NodeAddresses>,
    calls: Vec<ClientCall>,
}

fn out_of_turn(response: &Response) -> MetadataError {
    anyhow!("the service answered out of turn: {response:?}").into()
}

/// A volume that a client may open.
#[derive(Debug)]
pub struct RemoteVolume {
    /// The volume, as its pool has it.
    pub volume: PooledVolume,
    /// The nodes' places.
    pub places: Vec<NodePlace>,
    /// Issues its capabilities.
    pub issuer: Box<dyn Issuer>,
    /// Ends when the thread has taken leave of the service, after the issuer is dropped.
    pub(crate) farewell: Receiver<()>,
}

impl RemoteVolume {
    /// Asks the service for a volume, and starts the thread that asks for its capabilities. The
    /// volume will be opened as `device`.
    ///
    /// # Errors
    /// As [`MetadataClient::connect`] and [`MetadataClient::open`].
    pub fn find(
        credential: &Credential,
        volume: &str,
        device: ClientDevice,
    ) -> Result<Self, MetadataError> {
        let mut session = MetadataClient::connect(credential)?;
        let instance = random()?;
        let layout = session.open(volume, instance)?;
        let nodes = u16::try_from(layout.nodes.len()).context("the pool has too many nodes")?;
        let directory = Arc::new(Directory::default());
        directory.set(&layout.nodes);
        let place = |node| NodePlace::Listed(Arc::clone(&directory) as _, NodeIndex(node));
        let places = (0..nodes).map(place).collect();
        let (sender, commands) = mpsc::channel();
        let (leaving, farewell) = mpsc::channel();
        let keeper = Keeper {
            credential: credential.clone(),
            volume: volume.to_owned(),
            id: layout.volume.clone(),
            instance,
            address: 0,
            told: false,
            directory,
            session: Some(session),
            store: None,
            wanted: BTreeSet::new(),
            issued: BTreeSet::new(),
            oldest: None,
            device,
            reported: None,
            answers: Vec::new(),
            _leaving: leaving,
        };
        fieldstone_uring::start_thread("metadata", move || keeper.run(&commands))
            .context("no thread for the metadata service")?;
        let of_layout = || -> anyhow::Result<(VolumeId, Profile, Strategy, Encode)> {
            let id = VolumeId(number(&layout.volume)?);
            let Layout { code, replicate, encode, .. } = &layout;
            Ok((id, code.parse()?, replicate.parse()?, encode.parse()?))
        };
        let (id, profile, replicate, encode) = of_layout().context("the volume's layout")?;
        let issuer = Box::new(ThreadIssuer(sender));
        let volume = PooledVolume { id, profile, nodes, replicate, encode };
        Ok(Self { volume, places, issuer, farewell })
    }
}

/// The device that a volume is opened as: the service hears of its state, and calls it.
#[derive(Clone, Debug)]
pub struct ClientDevice {
    /// The runtime that has the device.
    pub runtime: Weak<Runtime>,
    /// Its name.
    pub name: DeviceName,
}

impl ClientDevice {
    /// The report on the device, short enough for a message.
    fn report(&self) -> Option<VolumeReport> {
        let mut report = VolumeReport::of_device(&*self.runtime.upgrade()?, &self.name)?;
        let is_short = |report: &VolumeReport| {
            serde_json::to_string(report).is_ok_and(|text| text.len() <= REPORT_BYTES_MAX)
        };
        if !is_short(&report) {
            report.io = None;
        }
        if !is_short(&report) {
            report.nodes.iter_mut().for_each(|node| node.reason.clear());
        }
        is_short(&report).then_some(report)
    }

    fn carry_out(&self, call: &ClientCall) -> ClientAnswer {
        let runtime = self.runtime.upgrade().context("the server ends");
        let done = runtime.and_then(|runtime| runtime.carry_out(&self.name, &call.call));
        ClientAnswer { number: call.number, error: done.err().map(|error| format!("{error:#}")) }
    }
}

/// The addresses of the nodes, as the service told them last.
#[derive(Debug, Default)]
struct Directory(Mutex<Vec<Option<Address>>>);

impl Directory {
    fn set(&self, nodes: &[Option<String>]) {
        let read = |text: &Option<String>| text.as_ref()?.parse().ok();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = nodes.iter().map(read).collect();
    }
}

impl NodeDirectory for Directory {
    fn address(&self, node: NodeIndex) -> Option<Address> {
        let addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(usize::from(node.0)).cloned().flatten()
    }
}

/// A command for the thread. It ends when the issuer is dropped.
enum Command {
    Start(Mailer),
    Ask(Epoch),
    Oldest(KeyGeneration),
}

/// The volume's view of the thread.
struct ThreadIssuer(Sender<Command>);

impl fmt::Debug for ThreadIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThreadIssuer")
    }
}

impl Issuer for ThreadIssuer {
    fn start(&mut self, store: Mailer) {
        let _ = self.0.send(Command::Start(store));
    }
    fn ask(&mut self, epoch: Epoch) {
        let _ = self.0.send(Command::Ask(epoch));
    }
    fn tell_oldest(&mut self, oldest: KeyGeneration) {
        let _ = self.0.send(Command::Oldest(oldest));
    }
}

/// Keeps a session with the service for a volume.
struct Keeper {
    credential: Credential,
    volume: String,
    /// The volume's id. Another volume may get its name.
    id: String,
    instance: u128,
    /// The log says that the service is away.
    told: bool,
    /// The index of the address to begin with: where a service answered last.
    address: usize,
    directory: Arc<Directory>,
    session: Option<MetadataClient>,
    store: Option<Mailer>,
    /// The epochs for which the volume wants capabilities.
    wanted: BTreeSet<Epoch>,
    /// The generations that signed what the volume has, except those that it uses no more.
    issued: BTreeSet<KeyGeneration>,
    /// What the volume has told, and the service does not know yet.
    oldest: Option<KeyGeneration>,
    device: ClientDevice,
    /// The report that the service was told last in this session.
    reported: Option<VolumeReport>,
    /// Answers to calls that the service does not know yet.
    answers: Vec<ClientAnswer>,
    /// Dropped at the end of the thread.
    _leaving: Sender<()>,
}

impl Keeper {
    fn run(mut self, commands: &Receiver<Command>) {
        let mut pause = PAUSE_MIN;
        let mut connect_at = Instant::now();
        let mut watch_at = Instant::now() + OPENING_WATCH_PERIOD;
        loop {
            let next = if self.session.is_none() { connect_at } else { watch_at };
            let rest = next.saturating_duration_since(Instant::now());
            match commands.recv_timeout(rest) {
                Ok(command) => self.take(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.end(),
            }
            if self.session.is_none() && Instant::now() < connect_at {
                continue;
            }
            let is_due = Instant::now() >= watch_at;
            match self.work(is_due) {
                Ok(()) => {
                    if std::mem::take(&mut self.told) {
                        tracing::warn!(volume = self.volume, "the metadata service answers again");
                    }
                    pause = PAUSE_MIN;
                }
                Err(MetadataError::Refused(reason)) => return self.refuse(commands, &reason),
                Err(MetadataError::Failed(error)) => {
                    // Once for each time that the service is away.
                    if !std::mem::replace(&mut self.told, true) {
                        let what = "the volume works until its capability expires";
                        tracing::warn!(volume = self.volume, "{error:#}; {what}");
                    }
                    self.session = None;
                    connect_at = Instant::now() + pause;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            if is_due {
                let is_serving =
                    self.reported.as_ref().is_some_and(|report| report.phase == "serving");
                let period = if is_serving { WATCH_PERIOD } else { OPENING_WATCH_PERIOD };
                watch_at = Instant::now() + period;
            }
        }
    }

    /// The service has refused. The store may not listen yet, or lose the mail: it gets one for
    /// each question.
    fn refuse(mut self, commands: &Receiver<Command>, reason: &str) {
        self.session = None;
        if let Some(runtime) = self.device.runtime.upgrade() {
            runtime.note_refusal(&self.device.name, reason);
        }
        self.mail(IssuerMail::Refused(reason.to_owned()));
        while let Ok(command) = commands.recv() {
            self.take(command);
            self.mail(IssuerMail::Refused(reason.to_owned()));
        }
    }

    /// The volume is closed: it uses no secret any more, so no rotation has to wait for it.
    fn end(mut self) {
        if let Some(session) = &mut self.session {
            let oldest = Some(KeyGeneration(u16::MAX));
            let _ = session.watch(News { oldest, ..News::default() });
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Start(store) => self.store = Some(store),
            Command::Ask(epoch) => {
                self.wanted.insert(epoch);
            }
            Command::Oldest(oldest) => {
                self.issued.retain(|generation| *generation >= oldest);
                self.oldest = Some(oldest);
            }
        }
    }

    /// Exchanges news with the service, and carries out its calls. Returns the generation that
    /// signs.
    fn watch(&mut self) -> Result<KeyGeneration, MetadataError> {
        loop {
            let Some(session) = &mut self.session else { return Ok(KeyGeneration(0)) };
            let report = self.device.report();
            // Without a report, `{}` takes the place of the last one.
            let value = report.as_ref().and_then(|report| serde_json::to_value(report).ok());
            let value = value.unwrap_or_else(|| serde_json::json!({}));
            let changed = (report != self.reported).then_some(value);
            let answers = std::mem::take(&mut self.answers);
            let news = News { oldest: self.oldest, report: changed, answers };
            let Present { signs, nodes, calls } = session.watch(news)?;
            (self.oldest, self.reported) = (None, report);
            if let Some(nodes) = nodes {
                self.directory.set(&nodes);
            }
            if calls.is_empty() {
                return Ok(signs);
            }
            // The service waits for the answers.
            self.answers = calls.iter().map(|call| self.device.carry_out(call)).collect();
        }
    }

    fn mail(&self, mail: IssuerMail) {
        if let Some(store) = &self.store {
            store.send(Box::new(mail));
        }
    }

    /// Does what is to do. With `watch`, also asks what has changed.
    fn work(&mut self, watch: bool) -> Result<(), MetadataError> {
        if self.session.is_none() {
            let mut session = MetadataClient::connect_from(&self.credential, self.address)?;
            let addresses = &self.credential.metadata;
            self.address = addresses.iter().position(|at| *at == session.address).unwrap_or(0);
            let layout = session.open(&self.volume, self.instance)?;
            if layout.volume != self.id {
                let reason = format!("the volume {:?} is another one now", self.volume);
                return Err(MetadataError::Refused(reason));
            }
            self.directory.set(&layout.nodes);
            self.session = Some(session);
            self.reported = None;
            self.answers.clear();
        }
        let Some(session) = &mut self.session else { return Ok(()) };
        while let Some(epoch) = self.wanted.first().copied() {
            let mail = session.issue(epoch)?;
            self.wanted.remove(&epoch);
            if let IssuerMail::Issued { capability, .. } = &mail {
                self.issued.insert(capability.rights.generation());
            }
            if let Some(store) = &self.store {
                store.send(Box::new(mail));
            }
        }
        if watch {
            let signs = self.watch()?;
            if self.issued.last().is_some_and(|newest| *newest < signs) {
                self.mail(IssuerMail::Renew);
            } else if self.issued.len() > 1 {
                // The service wants to know when the older one is of no use any more.
                self.mail(IssuerMail::TellOldest);
            }
        }
        Ok(())
    }
}
