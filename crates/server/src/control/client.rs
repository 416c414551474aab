//! The client of the control socket.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_host::connect_unix;

use super::{Request, Response};
use crate::report::PoolReport;

/// How long a server may take to answer, for example to make a volume.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How long a server may take to accept a connection. A server that hangs accepts no connection.
/// Then the kernel queues only a few connections.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a running server.
pub struct Client {
    reader: BufReader<UnixStream>,
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
                let shown = folder.join(&name).display().to_string();
                return Err(error).with_context(|| {
                    format!(
                        "a server may be behind {shown}, and accepts no call: end it, or remove \
                         the socket if no process has it"
                    )
                });
            }
        }
    }
    Ok(clients)
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
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { reader: BufReader::new(stream), path: folder.join(name), found: None })
    }

    /// Sends a request and waits for the answer. [`Response::Error`] becomes an error.
    pub fn ask(&mut self, request: &Request) -> anyhow::Result<Response> {
        let shown = self.path.display().to_string();
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        let mut answer = String::new();
        self.reader
            .get_mut()
            .write_all(line.as_bytes())
            .and_then(|()| self.reader.read_line(&mut answer))
            .with_context(|| format!("the server behind {shown} does not answer"))?;
        if answer.is_empty() {
            bail!("the server behind {shown} ended without an answer");
        }
        let response = serde_json::from_str(&answer)
            .with_context(|| format!("the server behind {shown} speaks another version"))?;
        match response {
            Response::Error { error } => bail!("{error}"),
            other => Ok(other),
        }
    }

    /// The complete report: the one by which the server was found, if there is one. So a node that
    /// does not answer delays `status` of a volume once, and not twice.
    pub fn first_status(&mut self) -> anyhow::Result<PoolReport> {
        self.found.take().map_or_else(|| self.status(), |report| Ok(*report))
    }

    /// Asks for the complete report.
    pub fn status(&mut self) -> anyhow::Result<PoolReport> {
        match self.ask(&Request::Status)? {
            Response::Status(report) => Ok(*report),
            other => bail!("the server answered out of turn: {other:?}"),
        }
    }
}
