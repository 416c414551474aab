//! The client of the control socket.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_host::connect_unix;

use super::{Request, Response};
use crate::client_limits::Timed;
use crate::report::PoolReport;

/// How long a server may take to answer, for example to make a volume.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How long a server may take to accept a connection. The kernel accepts some connections for a
/// server that hangs, and then none. So only the time limit of a question always ends the wait for
/// such a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a running server.
pub struct Client {
    reader: BufReader<Timed<UnixStream>>,
    path: PathBuf,
    /// The report by which [`find_server`] found the server.
    found: Option<Box<PoolReport>>,
}

/// Runs `act` with a path to `name` in `folder`. The path is short enough for the address of a unix
/// socket (107 bytes), even if the path of the folder is longer.
pub(super) fn with_short_path<T>(
    folder: &Path,
    name: &str,
    act: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let folder = File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    act(&path)
}

/// Connects to the socket `name` in `folder`.
///
/// # Errors
/// No server listens there, or the server does not accept in time (`TimedOut`).
pub(super) fn connect(folder: &Path, name: &str) -> io::Result<UnixStream> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    with_short_path(folder, name, |path| connect_unix(path, deadline))
}

/// The names of the sockets of the pool at `folder`. A socket may be that of a server that has
/// ended.
fn sockets(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if name.starts_with("control.") && name.ends_with(".sock") {
            names.push(name);
        }
    }
    // The plain name comes first: the first server of a pool takes it.
    names.sort_by_key(|name| (name != "control.sock", name.clone()));
    Ok(names)
}

/// Connects to all servers of the pool at `folder`.
///
/// # Errors
/// The folder cannot be read, or a server may be behind a socket and does not accept the
/// connection.
pub fn every_server(folder: &Path) -> anyhow::Result<Vec<Client>> {
    let names = sockets(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut clients = Vec::new();
    for name in names {
        match Client::connect(folder, &name) {
            Ok(client) => clients.push(client),
            // The server has ended.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) => {}
            Err(error) => {
                let advice = advice(&folder.join(&name), error.kind());
                return Err(error).context(advice);
            }
        }
    }
    Ok(clients)
}

/// What to do about a server that this process cannot speak to.
fn advice(socket: &Path, why: io::ErrorKind) -> String {
    let shown = socket.display();
    if why != io::ErrorKind::PermissionDenied {
        return format!(
            "a server may be behind {shown}, and accepts no call: end it, or remove the socket if \
             no process has it"
        );
    }
    let owner = fs::metadata(socket).map_or_else(
        |_| "the user of that server".to_owned(),
        |found| format!("the user of that server (uid {})", found.uid()),
    );
    format!(
        "only another user may speak to the server behind {shown}: run this command as {owner}, or \
         remove the socket if no process has it"
    )
}

/// Connects to the servers of the pool at `folder` that accept the connection.
pub fn servers(folder: &Path) -> Vec<Client> {
    let names = sockets(folder).unwrap_or_default();
    let connect = |name: &String| {
        let client = Client::connect(folder, name);
        if let Err(error) = &client
            && error.kind() == io::ErrorKind::TimedOut
        {
            let path = folder.join(name);
            eprint_line!(
                "fieldstone: the server behind {} hangs: it accepts no call",
                path.display()
            );
        }
        client.ok()
    };
    names.iter().filter_map(connect).collect()
}

/// Finds the server that serves `volume`, or any server of the pool if no volume is given.
pub fn find_server(folder: &Path, volume: Option<&str>) -> anyhow::Result<Option<Client>> {
    for mut client in servers(folder) {
        let Some(name) = volume else { return Ok(Some(client)) };
        if let Response::Status(report) = client.ask(&Request::Status)?
            && report.volumes.iter().any(|volume| volume.name == name)
        {
            client.found = Some(report);
            return Ok(Some(client));
        }
    }
    Ok(None)
}

impl Client {
    /// Connects to a socket of the pool at `folder`.
    fn connect(folder: &Path, name: &str) -> io::Result<Self> {
        let stream = connect(folder, name)?;
        let stream = Timed::new(&Arc::new(stream), TIMEOUT);
        Ok(Self { reader: BufReader::new(stream), path: folder.join(name), found: None })
    }

    /// Sends a request and waits for the answer, for at most two minutes. [`Response::Error`]
    /// becomes an error.
    ///
    /// # Errors
    /// The server refuses, or does not answer in time. The error names its socket.
    pub fn ask(&mut self, request: &Request) -> anyhow::Result<Response> {
        self.ask_within(TIMEOUT, request)
    }

    /// As [`Client::ask`], but waits for at most `limit`. If the answer does not come in time,
    /// the connection must not be used again: the answer may still come.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ask_within(&mut self, limit: Duration, request: &Request) -> anyhow::Result<Response> {
        let shown = self.path.display();
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        let mut answer = String::new();
        self.reader.get_mut().limit(limit);
        let sent = self.reader.get_mut().write_all(line.as_bytes());
        match sent.and_then(|()| self.reader.read_line(&mut answer)) {
            Ok(_) => {}
            // A socket reports its time limit as `WouldBlock`.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                bail!(
                    "the server behind {shown} has not answered within {limit:.0?}: its process \
                     may be stopped or hang"
                );
            }
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("the server behind {shown} does not answer"));
            }
        }
        if answer.is_empty() {
            bail!("the server behind {shown} ended without an answer");
        }
        let response = serde_json::from_str(&answer)
            .with_context(|| format!("the server behind {shown} speaks another version"))?;
        match response {
            Response::Error { error } => bail!("the server behind {shown} refuses: {error}"),
            other => Ok(other),
        }
    }

    /// The complete report: the one by which the server was found, if there is one. So a node that
    /// does not answer delays `status` of a volume once, and not twice.
    pub fn first_status(&mut self) -> anyhow::Result<PoolReport> {
        self.found.take().map_or_else(|| self.status(), |report| Ok(*report))
    }

    /// As [`Client::first_status`], with the volumes that the other servers of the pool report on.
    /// Servers that do not answer are left out.
    pub fn first_status_of_all(&mut self) -> anyhow::Result<PoolReport> {
        let mut report = self.first_status()?;
        let folder = self.path.parent().map(Path::to_path_buf).unwrap_or_default();
        for mut other in servers(&folder).into_iter().filter(|other| other.path != self.path) {
            match other.status() {
                Ok(found) => report.add_volumes_of(found),
                Err(error) => eprint_line!("fieldstone: {error:#}"),
            }
        }
        Ok(report)
    }

    /// Asks for the complete report.
    pub fn status(&mut self) -> anyhow::Result<PoolReport> {
        match self.ask(&Request::Status)? {
            Response::Status(report) => Ok(*report),
            other => bail!("the server answered out of turn: {other:?}"),
        }
    }
}
