//! The server of the control socket: one thread accepts, and each client has a thread.
//!
//! The server bounds the number of clients and the time that it waits for each client
//! ([`Callers`]). So a client that stalls keeps no other client out.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use fieldstone_uring::start_thread;

use super::client::{connect, with_short_path};
use super::{Request, Response};
use crate::client_limits::{Caller, Callers, Timed};
use crate::pool::{POOL_FILE, record};

/// Longest line that a client may send.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// A client that sends no request for this time is disconnected.
const SILENCE: Duration = Duration::from_secs(600);
/// A client must send the rest of a begun request within this time. It must also take an answer
/// within this time.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// Largest number of clients at a time.
const CLIENTS_MAX: usize = 64;

/// Carries out requests.
pub trait Service: Send + Sync + 'static {
    /// Carries out a request, and returns the answer.
    fn answer(&self, request: Request) -> Response;
}

/// A listening control socket. Dropping this removes the socket's file, and ends the thread.
pub struct ControlServer {
    path: PathBuf,
    /// The listening socket, as a stream, because only that can be shut down.
    listening: UnixStream,
    callers: Arc<Callers<UnixStream>>,
    ending: Arc<AtomicBool>,
    /// `None` when the thread has ended.
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Starts to listen in the pool's folder.
    ///
    /// # Errors
    /// The socket or the thread cannot be made.
    pub fn start(folder: &Path, service: Arc<dyn Service>) -> anyhow::Result<Self> {
        // Absolute: the program may change its folder.
        let absolute = folder.canonicalize();
        let folder = &*absolute.with_context(|| format!("cannot use {}", folder.display()))?;
        // Two servers that start together must not choose the same name.
        let _locked = folder.join(POOL_FILE).exists().then(|| record::lock_pool(folder));
        let name = free_name(folder);
        let path = folder.join(&name);
        let listener = with_short_path(folder, &name, |short| {
            // Removes the socket of a server that was killed: no server answered on it.
            let _ = fs::remove_file(short);
            let listener = UnixListener::bind(short)?;
            fs::set_permissions(short, fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        })
        .with_context(|| format!("cannot listen on {}", path.display()))?;
        let listening = UnixStream::from(OwnedFd::from(listener.try_clone()?));
        let callers = Callers::new(CLIENTS_MAX);
        let ending = Arc::new(AtomicBool::new(false));
        let (taken, ends) = (Arc::clone(&callers), Arc::clone(&ending));
        // Its clients' threads inherit that they take no signals.
        let serve = move |caller| Ok(converse(caller, service.as_ref())?);
        let run = move || taken.serve_each(listener.incoming(), &ends, "control client", serve);
        let thread = Some(start_thread("control", run)?);
        Ok(Self { path, listening, callers, ending, thread })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        let _ = fs::remove_file(&self.path);
        // Ends the thread's wait for the next client.
        let woken = self.listening.shutdown(Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
            && thread.join().is_err()
        {
            tracing::error!("the thread of the control socket failed");
        }
        self.callers.end();
    }
}

fn free_name(folder: &Path) -> String {
    let plain = "control.sock";
    let taken = match connect(folder, plain) {
        Ok(_) => true,
        // A server that hangs still owns the name.
        Err(error) => error.kind() == io::ErrorKind::TimedOut,
    };
    if taken { format!("control.{}.sock", std::process::id()) } else { plain.to_owned() }
}

fn converse(mut caller: Caller<UnixStream>, service: &dyn Service) -> io::Result<()> {
    let mut writer = Timed::new(caller.line(), CLIENT_LIMIT);
    let mut reader = BufReader::new(Timed::new(caller.line(), SILENCE));
    loop {
        reader.get_mut().limit(SILENCE);
        if reader.fill_buf()?.is_empty() {
            return Ok(());
        }
        reader.get_mut().limit(CLIENT_LIMIT);
        let mut line = Vec::new();
        reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if !caller.busy() {
            return Ok(());
        }
        let request = serde_json::from_slice::<Request>(&line);
        // What follows a line that is no request may come from a program that was made to send
        // it: nothing of it is carried out.
        let last = request.is_err() || !line.ends_with(b"\n");
        let response = match request {
            Ok(request) => service.answer(request),
            Err(error) => {
                Response::Error { error: format!("the request is not understood: {error}") }
            }
        };
        caller.idle();
        let mut answer = serde_json::to_string(&response)?;
        answer.push('\n');
        writer.limit(CLIENT_LIMIT);
        writer.write_all(answer.as_bytes())?;
        if last {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Client, every_server, servers};
    use super::*;

    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::time::Instant;

    struct Echo;

    impl Service for Echo {
        fn answer(&self, request: Request) -> Response {
            match request {
                Request::Stop => Response::Done,
                other => Response::Error { error: format!("{other:?}") },
            }
        }
    }

    fn ask(client: &mut Client, request: &Request) -> String {
        match client.ask(request) {
            Ok(Response::Done) => "done".to_owned(),
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn two_servers_answer_and_leave_nothing_behind() {
        let temp = tempfile::tempdir().expect("temp");
        // A path that is too long for the address of a socket.
        let folder = temp.path().join("d".repeat(120));
        fs::create_dir(&folder).expect("made");
        let first = ControlServer::start(&folder, Arc::new(Echo)).expect("free");
        let second = ControlServer::start(&folder, Arc::new(Echo)).expect("beside it");
        let mut clients = servers(&folder);
        assert_eq!(clients.len(), 2);
        for client in &mut clients {
            assert_eq!(ask(client, &Request::Stop), "done");
            let refused = ask(client, &Request::VolumeList);
            assert!(refused.ends_with("refuses: VolumeList"), "{refused}");
        }
        drop((first, second));
        assert_eq!(fs::read_dir(&folder).expect("readable").count(), 0);
    }

    #[test]
    fn nonsense_is_answered_and_a_leftover_is_replaced() {
        let temp = tempfile::tempdir().expect("temp");
        drop(UnixListener::bind(temp.path().join("control.sock")).expect("free"));
        let _server = ControlServer::start(temp.path(), Arc::new(Echo)).expect("a leftover");
        let mut stream = UnixStream::connect(temp.path().join("control.sock")).expect("there");
        stream.write_all(b"{\"op\":\"dance\"}\n").expect("written");
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).expect("answered");
        assert!(answer.contains("not understood"), "{answer}");
    }

    /// Another program may be made to send lines here. It does not know that it speaks to a server.
    #[test]
    fn a_line_after_nonsense_is_not_carried_out() {
        let temp = tempfile::tempdir().expect("temp");
        let _server = ControlServer::start(temp.path(), Arc::new(Echo)).expect("free");
        let mut stream = UnixStream::connect(temp.path().join("control.sock")).expect("there");
        stream.write_all(b"FSTW\x02\x00\n{\"op\":\"stop\"}\n").expect("written");
        let mut answers = String::new();
        // The server closes the connection while a line is left, which may break it.
        let _ = BufReader::new(&stream).read_to_string(&mut answers);
        assert!(answers.contains("not understood"), "{answers}");
        assert_eq!(answers.lines().count(), 1, "{answers}");
    }

    #[test]
    fn a_server_that_hangs_keeps_no_client_and_no_other_server() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("control.sock");
        let hung = UnixListener::bind(&path).expect("free");
        // SAFETY: listen() takes no pointers. The backlog is 0, so one connection may wait.
        assert_eq!(unsafe { libc::listen(hung.as_raw_fd(), 0) }, 0);
        let _waits = UnixStream::connect(&path).expect("room for one");
        let (done, outcome) = std::sync::mpsc::channel();
        let folder = temp.path().to_path_buf();
        std::thread::spawn(move || {
            let alone = servers(&folder).len();
            let other = ControlServer::start(&folder, Arc::new(Echo)).expect("beside it");
            let _ = done.send((alone, servers(&folder).len(), other));
        });
        let outcome = outcome.recv_timeout(Duration::from_secs(30)).expect("a call hangs");
        assert_eq!((outcome.0, outcome.1), (0, 1));
        assert!(path.exists(), "the name is the server's that hangs");
    }

    /// A call that has to reach every server fails if it may miss one.
    #[test]
    fn a_server_that_cannot_be_asked_is_not_passed_over() {
        let temp = tempfile::tempdir().expect("temp");
        let _server = ControlServer::start(temp.path(), Arc::new(Echo)).expect("free");
        // The socket of a server that has ended.
        drop(UnixListener::bind(temp.path().join("control.7.sock")).expect("free"));
        assert_eq!(every_server(temp.path()).expect("all that run").len(), 1);
        let path = temp.path().join("control.9.sock");
        let hung = UnixListener::bind(&path).expect("free");
        // SAFETY: listen() takes no pointers. The backlog is 0, so one connection may wait.
        assert_eq!(unsafe { libc::listen(hung.as_raw_fd(), 0) }, 0);
        let _waits = UnixStream::connect(&path).expect("room for one");
        let error = every_server(temp.path()).err().expect("one does not accept");
        let text = format!("{error:#}");
        assert!(text.contains("control.9.sock") && text.contains("accepts no call"), "{text}");
        assert_eq!(servers(temp.path()).len(), 1, "other calls need one server only");
        drop(hung);
        assert_eq!(every_server(temp.path()).expect("it has ended").len(), 1);
        assert!(every_server(&temp.path().join("nothing")).is_err());
    }

    /// A pool may have several servers, and one of them may be of an older release.
    #[test]
    fn an_error_names_the_server_that_gave_it() {
        let temp = tempfile::tempdir().expect("temp");
        let _first = ControlServer::start(temp.path(), Arc::new(Echo)).expect("free");
        let _second = ControlServer::start(temp.path(), Arc::new(Echo)).expect("beside it");
        let second = format!("control.{}.sock", std::process::id());
        for (client, name) in servers(temp.path()).iter_mut().zip(["control.sock", &second]) {
            let path = temp.path().join(name).display().to_string();
            let error = client.ask(&Request::Keys { retired: false }).expect_err("refused");
            // Each cause, because some callers show the first one only.
            let text = error.to_string();
            assert!(text.contains(&path) && text.contains("Keys"), "{text}");
        }
    }

    /// The kernel accepts calls for a process that is stopped.
    #[test]
    fn a_stopped_server_is_waited_for_as_long_as_the_caller_says() {
        let temp = tempfile::tempdir().expect("temp");
        let _stopped = UnixListener::bind(temp.path().join("control.7.sock")).expect("free");
        let mut clients = every_server(temp.path()).expect("the kernel takes the call");
        let limit = Duration::from_millis(300);
        let began = Instant::now();
        let error = clients[0].ask_within(limit, &Request::Status).expect_err("no answer");
        assert!(began.elapsed() >= limit && began.elapsed() < Duration::from_secs(60));
        let text = format!("{error:#}");
        assert!(text.contains("control.7.sock") && text.contains("within 300ms"), "{text}");
    }

    /// A server that sends its answer byte by byte has no more time than another.
    #[test]
    fn the_time_for_an_answer_includes_all_its_parts() {
        let temp = tempfile::tempdir().expect("temp");
        let listener = UnixListener::bind(temp.path().join("control.sock")).expect("free");
        let mut clients = every_server(temp.path()).expect("there");
        let (mut stream, _) = listener.accept().expect("a call");
        let slow = std::thread::spawn(move || {
            // Ends when the client has closed the connection.
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let began = Instant::now();
        let limit = Duration::from_millis(300);
        let error = clients[0].ask_within(limit, &Request::Status).expect_err("no answer");
        assert!(began.elapsed() < Duration::from_secs(60));
        assert!(error.to_string().contains("has not answered"), "{error}");
        drop(clients);
        slow.join().expect("it ends");
    }

    /// The pool's owner calls, and the server is root's.
    #[test]
    fn a_user_without_the_right_to_call_learns_whose_server_it_is() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("control.sock");
        let _other = UnixListener::bind(&path).expect("free");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("its owner may");
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).expect("its owner may");
        let owner = fs::metadata(&path).expect("there").uid();
        let folder = temp.path().to_path_buf();
        let asked = std::thread::spawn(move || {
            // SAFETY: geteuid() always succeeds. The system call, unlike the function of the C
            // library, changes this thread's user only.
            if unsafe { libc::geteuid() } == 0 {
                // SAFETY: setresuid() takes no pointers.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
                assert_eq!(changed, 0, "root may");
            }
            every_server(&folder).map(|clients| clients.len()).expect_err("it may not")
        });
        let text = format!("{:#}", asked.join().expect("asked"));
        let advice = format!("run this command as the user of that server (uid {owner})");
        assert!(text.contains("control.sock") && text.contains(&advice), "{text}");
        assert!(!text.contains("end it"), "{text}");
    }

    #[test]
    fn stalled_clients_keep_nobody_out() {
        let temp = tempfile::tempdir().expect("temp");
        let _server = ControlServer::start(temp.path(), Arc::new(Echo)).expect("free");
        let path = temp.path().join("control.sock");
        let mut stalled = Vec::new();
        for index in 0..3 * CLIENTS_MAX {
            let mut stream = UnixStream::connect(&path).expect("there");
            if index % 2 == 0 {
                // A client whose connection is closed already cannot send.
                let _ = stream.write_all(b"{\"op\":");
            }
            stalled.push(stream);
        }
        let mut clients = servers(temp.path());
        assert_eq!(ask(&mut clients[0], &Request::Stop), "done");
    }
}
