//! The volumes of a pool that its clients have open.
//!
//! A client opens a volume on its own machine, and holds a session with a metadata service for it.
//! Through the session, the client reports on the volume, each second, and carries out calls to it.
//! So the commands on the pool's folder reach a volume wherever it is open.
//!
//! ```text
//! command            server of the pool                        client
//!    | scrub DIR/disk     |                                       |
//!    +------------------> | call 7: scrub  ---- in its answer --> | starts the scrub
//!    |                    | <---- with its next request: 7 done - |
//!    | <----------------- |                                       |
//! ```
//!
//! What a client reports is what it says. It can lie about its own volumes only: the names and ids
//! in its reports are those that the pool has, and its epoch is one that it has a capability for.
//! Texts are made [plain](plain_text).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_proto::{Epoch, VolumeId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::report::VolumeReport;
use crate::runtime::DeviceCall;

/// How long a client may take for a call. It asks for calls each second.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The most calls that wait for a client.
const CALLS_MAX: usize = 16;
/// A report says so if the client has told nothing for this time. A client tells something each
/// second.
const SILENCE_TOLD: Duration = Duration::from_secs(3);
/// The most characters of a text in a report.
const TEXT_CHARS_MAX: usize = 400;
/// The largest number in a report. Sums of such numbers stay in range.
const NUMBER_MAX: u64 = 1 << 56;

/// A call to a volume that a client has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCall {
    /// The number of the call in the session.
    pub number: u64,
    /// What is to be done.
    pub call: DeviceCall,
}

/// The client's answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientAnswer {
    /// The number of the call.
    pub number: u64,
    /// Why it was not carried out, if it was not.
    pub error: Option<String>,
}

/// The volumes that clients of a pool have open, as far as this process knows.
#[derive(Debug, Default)]
pub struct ClientVolumes {
    sessions: Mutex<Sessions>,
    /// Notified when a client has answered a call, reported or gone.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Sessions {
    /// The number of the next session or call.
    next: u64,
    open: BTreeMap<u64, ClientVolume>,
}

/// A volume of a session.
#[derive(Debug)]
struct ClientVolume {
    client: String,
    id: VolumeId,
    name: String,
    report: VolumeReport,
    heard: Instant,
    /// Calls that the client has not been told.
    calls: VecDeque<ClientCall>,
    /// Answers for which a caller waits. `None` while the client has not answered.
    answers: BTreeMap<u64, Option<ClientAnswer>>,
}

impl ClientVolumes {
    /// A session of a client opens a volume.
    pub fn enter(self: &Arc<Self>, client: &str, id: VolumeId, name: &str) -> ClientSeat {
        let mut sessions = self.lock();
        let number = sessions.number();
        let volume = ClientVolume {
            client: client.to_owned(),
            id,
            name: name.to_owned(),
            report: VolumeReport::default(),
            heard: Instant::now(),
            calls: VecDeque::new(),
            answers: BTreeMap::new(),
        };
        sessions.open.insert(number, volume);
        ClientSeat { volumes: Arc::clone(self), number }
    }

    /// The reports on the volumes that clients serve, open or close, one for each volume.
    pub fn reports(&self) -> Vec<VolumeReport> {
        let sessions = self.lock();
        let mut newest: BTreeMap<VolumeId, &ClientVolume> = BTreeMap::new();
        for volume in sessions.open.values().filter(|volume| volume.is_open()) {
            // The one of the higher epoch has taken the volume over.
            let known = newest.entry(volume.id).or_insert(volume);
            if volume.report.epoch > known.report.epoch {
                *known = volume;
            }
        }
        newest.into_values().map(ClientVolume::shown).collect()
    }

    /// Calls a volume that a client serves, and waits for the answer.
    ///
    /// # Errors
    /// No client serves the volume, or the client refuses, goes, or does not answer.
    pub fn call(&self, id: VolumeId, call: DeviceCall) -> anyhow::Result<()> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut sessions = self.lock();
        let number = sessions.number();
        let of_it = sessions.open.iter_mut().filter(|(_, volume)| volume.id == id);
        let serving = of_it.filter(|(_, volume)| volume.report.phase == "serving");
        let (session, volume) = serving
            .max_by_key(|(_, volume)| volume.report.epoch)
            .context("no client serves the volume at the moment")?;
        let (session, client) = (*session, volume.client.clone());
        if volume.answers.len() >= CALLS_MAX {
            bail!("the client {client} has not answered {CALLS_MAX} calls");
        }
        volume.calls.push_back(ClientCall { number, call });
        volume.answers.insert(number, None);
        loop {
            let Some(volume) = sessions.open.get_mut(&session) else {
                bail!("the client {client} has ended its session, and may not have done it");
            };
            if let Some(Some(answer)) = volume.answers.get(&number).cloned() {
                volume.answers.remove(&number);
                match answer.error {
                    None => return Ok(()),
                    Some(error) => bail!("the client {client} refuses: {error}"),
                }
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                volume.answers.remove(&number);
                volume.calls.retain(|waiting| waiting.number != number);
                bail!("the client {client} has not answered within {CALL_TIMEOUT:?}");
            }
            let waited = self.changed.wait_timeout(sessions, rest);
            sessions = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The volume was removed: what clients say of it counts for nothing any more.
    pub fn end_volume(&self, id: VolumeId) {
        self.lock().open.retain(|_, volume| volume.id != id);
        self.changed.notify_all();
    }

    /// The same for all volumes of a client that was evicted.
    pub fn end_client(&self, client: &str) {
        self.lock().open.retain(|_, volume| volume.client != client);
        self.changed.notify_all();
    }

    /// Waits for the next report of any client, for at most `limit`.
    pub fn wait(&self, limit: Duration) {
        let _ = self.changed.wait_timeout(self.lock(), limit);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl ClientVolume {
    fn is_open(&self) -> bool {
        matches!(&*self.report.phase, "opening" | "serving" | "closing")
    }

    /// The client's report, under the names that the pool has.
    fn shown(&self) -> VolumeReport {
        let (client, silence) = (&self.client, self.heard.elapsed());
        let waits_for = match silence > SILENCE_TOLD {
            true => format!("the client {client}, which has told nothing for {silence:.0?}"),
            false => self.report.waits_for.clone(),
        };
        VolumeReport {
            name: self.name.clone(),
            id: self.id.to_string(),
            client: Some(client.clone()),
            waits_for,
            ..self.report.clone()
        }
    }
}

/// The place of a session among the [`ClientVolumes`]. Dropping it ends the place.
#[derive(Debug)]
pub struct ClientSeat {
    volumes: Arc<ClientVolumes>,
    number: u64,
}

/// What a client has told, and is told.
#[derive(Debug, Default)]
pub struct Heard {
    /// The report, if there is a new one, under the names that the pool has.
    pub report: Option<VolumeReport>,
    /// The calls that the client is to carry out.
    pub calls: Vec<ClientCall>,
}

impl ClientSeat {
    /// Takes what the client says. Its capabilities are for epochs up to `granted`. A report of
    /// something else is taken for none.
    pub fn hear(&self, report: Option<Value>, granted: Epoch, answers: Vec<ClientAnswer>) -> Heard {
        let mut sessions = self.volumes.lock();
        let Some(volume) = sessions.open.get_mut(&self.number) else { return Heard::default() };
        volume.heard = Instant::now();
        let is_new = report.is_some();
        if let Some(mut report) = report {
            make_plain(&mut report);
            let read = serde_json::from_value(report).ok();
            let read = read.filter(|report: &VolumeReport| report.epoch <= granted.0);
            volume.report = read.unwrap_or_default();
        }
        for mut answer in answers {
            answer.error = answer.error.as_deref().map(plain_text);
            // Other numbers are of calls whose callers wait no more.
            if let Some(awaited) = volume.answers.get_mut(&answer.number) {
                *awaited = Some(answer);
            }
        }
        let calls = volume.calls.drain(..).collect();
        let report = (is_new && volume.is_open()).then(|| volume.shown());
        self.volumes.changed.notify_all();
        Heard { report, calls }
    }
}

impl Drop for ClientSeat {
    fn drop(&mut self) {
        self.volumes.lock().open.remove(&self.number);
        self.volumes.changed.notify_all();
    }
}

/// Makes texts plain and bounds their length, because a report is shown on terminals. Makes numbers
/// small enough to be added up.
fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = plain_text(text),
        Value::Number(number) => {
            if let Some(large) = number.as_u64().filter(|number| *number > NUMBER_MAX) {
                *number = large.min(NUMBER_MAX).into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_plain),
        Value::Object(fields) => {
            let pairs = std::mem::take(fields).into_iter();
            fields.extend(pairs.map(|(name, mut value)| {
                make_plain(&mut value);
                (plain_text(&name), value)
            }));
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// A text without characters that move the cursor or change the direction of writing.
fn plain_text(text: &str) -> String {
    let is_odd = |found: char| {
        let formats = matches!(found, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}');
        let invisible = matches!(found, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
        let isolates = matches!(found, '\u{2060}'..='\u{206f}' | '\u{e0000}'..='\u{e007f}');
        found.is_control() || formats || invisible || isolates
    };
    let printed = text.chars().map(|found| if is_odd(found) { ' ' } else { found });
    printed.take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: VolumeId = VolumeId(7);

    fn volumes() -> Arc<ClientVolumes> {
        Arc::default()
    }

    /// The client has capabilities up to this epoch.
    const GRANTED: Epoch = Epoch(9);

    fn value(phase: &str, epoch: u64) -> Option<Value> {
        let (phase, name) = (phase.to_owned(), "another".to_owned());
        let report = VolumeReport { phase, epoch, name, ..VolumeReport::default() };
        serde_json::to_value(report).ok()
    }

    fn serving(epoch: u64) -> Option<Value> {
        value("serving", epoch)
    }

    fn scrub() -> DeviceCall {
        DeviceCall::Store("scrub:limit=0".to_owned())
    }

    #[test]
    fn a_volume_is_reported_once_under_its_own_name_while_a_client_has_it() {
        let volumes = volumes();
        let first = volumes.enter("web1", ID, "disk");
        assert!(volumes.reports().is_empty(), "it has not said anything");
        first.hear(serving(4), GRANTED, Vec::new());
        let second = volumes.enter("web2", ID, "disk");
        second.hear(serving(5), GRANTED, Vec::new());
        let shown = volumes.reports();
        assert_eq!(shown.len(), 1);
        assert_eq!((&*shown[0].name, shown[0].client.as_deref()), ("disk", Some("web2")));
        assert_eq!(shown[0].id, ID.to_string());
        drop(second);
        assert_eq!(volumes.reports()[0].client.as_deref(), Some("web1"));
        // None of these is a report on an open volume: the last one counts no more.
        let unreadable = Some(serde_json::json!({ "phase": "serving", "epoch": -1 }));
        for report in [value("failed", 4), Some(Value::Null), unreadable, serving(GRANTED.0 + 1)] {
            first.hear(serving(4), GRANTED, Vec::new());
            assert_eq!(volumes.reports().len(), 1);
            first.hear(report, GRANTED, Vec::new());
            assert!(volumes.reports().is_empty());
        }
        // The volume goes, and the session with it.
        first.hear(serving(4), GRANTED, Vec::new());
        volumes.end_volume(ID);
        first.hear(serving(4), GRANTED, Vec::new());
        assert!(volumes.reports().is_empty());
    }

    #[test]
    fn a_call_reaches_the_client_and_its_answer_the_caller() {
        let volumes = volumes();
        let error = volumes.call(ID, scrub()).expect_err("no client").to_string();
        assert!(error.contains("no client serves"), "{error}");
        let seat = volumes.enter("web1", ID, "disk");
        seat.hear(serving(4), GRANTED, Vec::new());
        let call = |error: Option<&str>| {
            let error = error.map(str::to_owned);
            std::thread::scope(|scope| {
                let caller = scope.spawn(|| volumes.call(ID, scrub()));
                let calls = loop {
                    let calls = seat.hear(None, GRANTED, Vec::new()).calls;
                    if !calls.is_empty() {
                        break calls;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                };
                assert_eq!(calls[0].call, scrub());
                let number = calls[0].number;
                // An answer to a call that nobody made is of no use to anybody.
                let wrong = ClientAnswer { number: number + 1, error: None };
                seat.hear(None, GRANTED, vec![wrong, ClientAnswer { number, error }]);
                caller.join().expect("it answers")
            })
        };
        call(None).expect("done");
        let refused = call(Some("no\x1b[31m")).expect_err("refused").to_string();
        assert!(refused.ends_with("web1 refuses: no [31m"), "{refused:?}");
        // The client goes while the call waits.
        let gone = std::thread::scope(|scope| {
            let caller = scope.spawn(|| volumes.call(ID, scrub()));
            while seat.hear(None, GRANTED, Vec::new()).calls.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(seat);
            caller.join().expect("it answers")
        });
        assert!(gone.expect_err("gone").to_string().contains("has ended its session"));
    }

    #[test]
    fn what_a_client_says_cannot_harm_a_terminal_or_a_sum() {
        let report = VolumeReport {
            phase: "serving".to_owned(),
            reason: "\x1b[2J\n\u{202e}\u{2066}".to_owned() + &"x".repeat(1000),
            size_bytes: u64::MAX,
            ..VolumeReport::default()
        };
        let volumes = volumes();
        let seat = volumes.enter("web1", ID, "disk");
        let heard = seat.hear(serde_json::to_value(report).ok(), GRANTED, Vec::new());
        let plain = heard.report.expect("it serves");
        assert!(plain.reason.starts_with(" [2J   xx"), "{}", plain.reason);
        assert_eq!(plain.reason.chars().count(), TEXT_CHARS_MAX);
        assert_eq!((plain.size_bytes, &*plain.phase), (NUMBER_MAX, "serving"));
    }
}
