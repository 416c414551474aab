//! An echo server on one reactor: how to drive a reactor, and what a turn costs.
//!
//! ```text
//! cargo run --release -p fieldstone-uring --example echo -- unix:/tmp/echo.sock
//! cargo run --release -p fieldstone-uring --example echo -- tcp:127.0.0.1:7777
//! ```
//!
//! Talk to it with `socat - UNIX-CONNECT:/tmp/echo.sock` or `nc 127.0.0.1 7777`. After every busy
//! second it prints the reactor's counters. While no client talks, it prints nothing and does not
//! wake up.

use std::collections::HashMap;
use std::error::Error;

use fieldstone_block::Nanos;
use fieldstone_buf::AlignedBuf;
use fieldstone_uring::{
    Event, Listener, Payload, Reactor, ReactorOptions, Socket, Token, Want, raise_open_files,
};

const ACCEPT: Token = Token(0);
const REPORT: Token = Token(1);
/// Tokens of connections start here. A connection's receive and send share its token.
const FIRST_CONNECTION: u64 = 2;
const BUFFER_BYTES: usize = 64 << 10;

struct Echo {
    reactor: Reactor,
    connections: HashMap<Token, Socket>,
    next: u64,
    reporting: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("tcp:127.0.0.1:7777".to_owned()).parse()?;
    raise_open_files(65_536)?;
    let listener = Listener::bind(&address)?;
    let mut reactor = Reactor::new(ReactorOptions::default())?;
    println!("listening on {}, completions are {:?}", listener.address(), reactor.task_run());
    reactor.accept(&listener, ACCEPT);

    let connections = HashMap::new();
    let mut echo = Echo { reactor, connections, next: FIRST_CONNECTION, reporting: false };
    let mut events = Vec::new();
    loop {
        echo.reactor.turn(&mut events)?;
        for event in events.drain(..) {
            echo.handle(event)?;
        }
    }
}

impl Echo {
    fn handle(&mut self, event: Event) -> Result<(), Box<dyn Error>> {
        match (event.token, event.payload, event.result) {
            (ACCEPT, _, Err(error)) => return Err(error.into()),
            (ACCEPT, Payload::Socket(socket), _) => {
                let token = Token(self.next);
                self.next += 1;
                let buffer = AlignedBuf::zeroed(BUFFER_BYTES);
                self.reactor.recv(&socket, buffer, Want::Any, token);
                self.connections.insert(token, socket);
            }
            (REPORT, ..) => self.report(),
            // Received: send it back. A zero count is the end of the stream.
            (token, Payload::Buffer(mut buffer), Ok(count)) if count > 0 => {
                buffer.truncate(count as usize);
                self.reactor.send(&self.connections[&token], vec![buffer.freeze()], token);
                self.report_soon();
            }
            // Sent: wait for more.
            (token, Payload::Parts(_), Ok(_)) => {
                let buffer = AlignedBuf::zeroed(BUFFER_BYTES);
                self.reactor.recv(&self.connections[&token], buffer, Want::Any, token);
            }
            // Ended or failed.
            (token, ..) => {
                self.connections.remove(&token);
            }
        }
        Ok(())
    }

    /// A timer runs only while there are counters to report.
    fn report_soon(&mut self) {
        if !self.reporting {
            self.reporting = true;
            let in_a_second = self.reactor.now().plus(Nanos::from_ms(1000));
            self.reactor.timer(in_a_second, REPORT);
        }
    }

    fn report(&mut self) {
        self.reporting = false;
        let counters = self.reactor.counters();
        let per_enter = counters.sqes as f64 / counters.enters as f64;
        println!(
            "{} connections, {} enters ({} waits), {} sqes ({per_enter:.2} per enter), {} cqes",
            self.connections.len(),
            counters.enters,
            counters.waits,
            counters.sqes,
            counters.cqes,
        );
    }
}
