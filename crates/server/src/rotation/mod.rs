//! Replaces a pool's secret while the pool serves (`fieldstone pool rotate-key`).
//!
//! # Steps
//!
//! ```text
//!   file                what happens before the next step
//!   Settled(g)
//!   Staged(g, g + 1)    every process that has the pool reads the file; every node that answers
//!                       accepts g + 1
//!   Issuing(g, g + 1)   every server signs with g + 1, and has the answers to all requests that g
//!                       signed
//!   Settled(g + 1)      every node that answers refuses g
//! ```
//!
//! The file `pool.key` is the only place where the state is kept. The command changes the file, and
//! processes learn of it ([`watch`]). The command asks servers to look at once, and asks nodes
//! through them: with capabilities of the generation in question, as any client would. Without a
//! server it starts the pool in its own process for these questions.
//!
//! # Failures
//! - The command may be killed at any point: the file has the state before or after a step, and the
//!   next call goes on from there ([`plan`]).
//! - A server may be killed at any point: it reads the file when it starts.
//! - A node that is down reads the file when it starts. A node on another machine reads its copy:
//!   if the copy is old, the node refuses capabilities of the new generation, volumes report that,
//!   and the node takes part again as soon as the copy is replaced.
//! - A node that still accepts the old secret at the end, because it has an old copy, keeps the
//!   next rotation from beginning. `--retire` checks whether all nodes are up to date.
//! - A node whose process is of an older release, and a server whose socket accepts no call or that
//!   does not answer (its process is stopped, say), keep the first step back: it cannot be undone.
//! - A process that the command does not know of has the time to look at the file by itself: two
//!   steps are [`STEP_PAUSE`] apart.
//! - Only one such command runs at a time (`rotation.lock`).

pub mod plan;
pub mod report;
pub mod watch;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use fieldstone_proto::{KeyGeneration, MasterKey, PoolKeys, Rotation};
use fieldstone_uring::{Holder, LockError, LockFile};

use crate::control::{Request, Response, every_server};
use crate::pool::{Pool, key_file, random};
use crate::running::{FixedNode, NODE_TIMEOUT, NODES_AT_A_TIME, Operator};
use plan::{Goal, Step, next_step, obstacle};
use report::{KeysReport, NodeKeyState, NodeKeys};

/// Held while a rotation is worked on.
const LOCK_FILE: &str = "rotation.lock";
/// How long processes may take to follow a step. A healthy one needs [`watch::WATCH_PERIOD`], and
/// the answers to requests under way come within seconds.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long they may keep the first step back. Nothing has changed then. A server of an older
/// release does not understand the question.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may take to answer, beyond these times, for each [`NODES_AT_A_TIME`] nodes of
/// its pool: it asks them first, and one of them may accept the call late and then say nothing. A
/// server that is stopped is waited for as long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2 * NODE_TIMEOUT.as_secs());
/// How long a step may wait before the user is told for what. A step of a healthy pool takes less.
const TOLD_AFTER: Duration = Duration::from_secs(3);
/// Pause between two looks at them.
const PAUSE: Duration = Duration::from_millis(250);
/// The shortest time between two steps. A process that misses no look is at most one step behind.
const STEP_PAUSE: Duration = Duration::from_secs(2 * watch::WATCH_PERIOD.as_secs());

/// The times of a rotation. Tests have shorter ones.
#[derive(Clone, Copy)]
struct Times {
    step_pause: Duration,
    first_timeout: Duration,
    step_timeout: Duration,
    answer_timeout: Duration,
    /// How long a step may wait before the user is told for what.
    told_after: Duration,
}

const TIMES: Times = Times {
    step_pause: STEP_PAUSE,
    first_timeout: FIRST_TIMEOUT,
    step_timeout: STEP_TIMEOUT,
    answer_timeout: ANSWER_TIMEOUT,
    told_after: TOLD_AFTER,
};

/// The result of a rotation.
#[derive(Clone, Debug)]
pub struct Rotated {
    /// The pool's secrets now.
    pub keys: PoolKeys,
    /// The nodes that no process found up to date: they are down or, after [`Goal::Prepare`], do
    /// not have the new secret yet.
    pub others: Vec<NodeKeys>,
}

/// Makes the steps that lead to the goal. `tell` gets a line for people about each.
///
/// # Errors
/// The goal does not fit the present state, a process does not follow a step in time, or the file
/// cannot be read or written. The steps made so far stay, and another call goes on from there.
pub fn rotate(
    folder: &Path,
    fixed: &[FixedNode],
    goal: Goal,
    tell: &mut dyn FnMut(&str),
) -> anyhow::Result<Rotated> {
    rotate_with(TIMES, folder, fixed, goal, tell)
}

fn rotate_with(
    times: Times,
    folder: &Path,
    fixed: &[FixedNode],
    goal: Goal,
    tell: &mut dyn FnMut(&str),
) -> anyhow::Result<Rotated> {
    let pool = Pool::open(folder)?;
    let path = folder.join(LOCK_FILE);
    let lock = LockFile::acquire(&path, Holder::Command).map_err(|error| {
        let headline = match &error {
            LockError::Held { .. } => "another command replaces the pool's secret",
            LockError::Io { .. } => "cannot begin to replace the pool's secret",
        };
        anyhow::Error::new(error).context(headline)
    })?;
    // Root's command must not keep the pool's owner from the next one.
    if let Err(error) =
        fs::metadata(folder).and_then(|owner| lock.give_to(owner.uid(), owner.gid()))
    {
        tracing::debug!("{} keeps its owner: {error}", path.display());
    }
    let mut keys = key_file::read(folder)?;
    let was_rotated = keys.oldest().0 > KeyGeneration(0);
    let mut begun = goal == Goal::Retire && was_rotated && keys.rotation() == Rotation::Settled;
    loop {
        let step = next_step(goal, &keys.rotation(), begun)?;
        let retired = keys.rotation() == Rotation::Settled;
        let wanted = Wanted { step, goal, keys: &keys, retired };
        let reports = wait_for(times, &pool, fixed, &wanted, tell)?;
        let Some(step) = step else { return Ok(Rotated { keys, others: others(reports) }) };
        keys = make(step, &keys)?;
        key_file::write(folder, &keys)?;
        begun = true;
        tell(&line(step, &keys, folder));
        if step != Step::Retire {
            std::thread::sleep(times.step_pause);
        }
    }
}

/// The keys after a step.
fn make(step: Step, keys: &PoolKeys) -> anyhow::Result<PoolKeys> {
    Ok(match step {
        Step::Stage => keys.stage(MasterKey(random()?.to_le_bytes()))?,
        Step::Issue => keys.issue()?,
        Step::Retire => keys.retire()?,
    })
}

fn line(step: Step, keys: &PoolKeys, folder: &Path) -> String {
    let (oldest, newest) = (keys.oldest().0, keys.newest().0);
    match step {
        Step::Stage => format!(
            "stored the secret of {newest} in {}",
            folder.join(key_file::KEY_FILE).display()
        ),
        Step::Issue => format!("the secret of {newest} signs; {oldest} is still accepted"),
        Step::Retire => format!("retired the secrets before {newest}"),
    }
}

/// What must hold before a step, or at the end.
struct Wanted<'a> {
    step: Option<Step>,
    goal: Goal,
    keys: &'a PoolKeys,
    /// Nodes must refuse the generation before the oldest.
    retired: bool,
}

/// Asks all processes that have the pool until nothing keeps the step back. Returns their reports.
fn wait_for(
    times: Times,
    pool: &Pool,
    fixed: &[FixedNode],
    wanted: &Wanted<'_>,
    tell: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<KeysReport>> {
    let (issuing, newest) = (wanted.keys.issuing().0.0, wanted.keys.newest().0.0);
    let timeout = match wanted.step {
        Some(Step::Stage) => times.first_timeout,
        _ => times.step_timeout,
    };
    let groups = pool.node_indices().count().div_ceil(NODES_AT_A_TIME);
    let answer = times.answer_timeout * u32::try_from(groups).unwrap_or(u32::MAX);
    let began = Instant::now();
    let deadline = began + timeout;
    let mut told = String::new();
    loop {
        let reason = match survey(pool, fixed, wanted.retired, (deadline, answer)) {
            Ok(reports) => match obstacle(wanted.step, wanted.goal, issuing, newest, &reports) {
                None => return Ok(reports),
                Some(reason) => anyhow::anyhow!(reason),
            },
            // A server may have been killed just now, or may be starting.
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            let advice = match wanted.step {
                None if wanted.retired => {
                    "the secret is replaced; mend this (a node on another machine needs a new copy \
                     of pool.key), and check with --retire"
                }
                Some(Step::Stage) => "nothing has changed; mend this and run the command again",
                _ => "the steps made so far stay; mend this and run the command again",
            };
            let waited = began.elapsed().as_secs();
            return Err(reason.context(format!("waited {waited} s; {advice}")));
        }
        let text = reason.to_string();
        if began.elapsed() >= times.told_after && text != told {
            tell(&format!("waiting, for at most {} s: {text}", timeout.as_secs()));
            told = text;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The reports of all servers of the pool; without a server, of the pool started here. Each server
/// has the time until the deadline for its answer, and at least the time of `answer`.
fn survey(
    pool: &Pool,
    fixed: &[FixedNode],
    retired: bool,
    (deadline, answer): (Instant, Duration),
) -> anyhow::Result<Vec<KeysReport>> {
    let mut clients = every_server(&pool.folder)?;
    if clients.is_empty() {
        match Operator::find(&pool.folder, None, fixed)? {
            Operator::Server(client) => clients.push(client),
            Operator::Own(running) => {
                let report = running.keys_report(retired);
                running.finish()?;
                return Ok(vec![report?]);
            }
        }
    }
    let mut reports = Vec::new();
    for mut client in clients {
        let limit = deadline.saturating_duration_since(Instant::now()).max(answer);
        match client.ask_within(limit, &Request::Keys { retired })? {
            Response::Keys(report) => reports.push(*report),
            other => bail!("the server answered out of turn: {other:?}"),
        }
    }
    Ok(reports)
}

/// The nodes that no process found up to date.
fn others(reports: Vec<KeysReport>) -> Vec<NodeKeys> {
    let mut nodes: Vec<NodeKeys> = reports.into_iter().flat_map(|report| report.nodes).collect();
    nodes.sort_by_key(|node| (node.node, node.state != NodeKeyState::Current));
    nodes.dedup_by_key(|node| node.node);
    nodes.retain(|node| node.state != NodeKeyState::Current);
    nodes
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{Encode, Strategy};

    use super::*;
    use crate::pool::{Sizes, create};

    fn pool() -> (tempfile::TempDir, std::path::PathBuf) {
        let temp = tempfile::tempdir().expect("temp");
        let dir = temp.path().join("pool");
        let sizes = Sizes { node_bytes: Some(16 << 20), overcommit: true };
        let profile = "copies:2".parse().expect("the name of a code");
        create(&dir, 2, profile, (Strategy::Flat, Encode::Client), sizes).expect("made");
        (temp, dir)
    }

    /// A pool here has two nodes, and so one group of them.
    const SHORT: Times = Times {
        step_pause: Duration::ZERO,
        first_timeout: Duration::from_secs(1),
        answer_timeout: Duration::from_secs(2),
        ..TIMES
    };

    fn go(dir: &Path, goal: Goal) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut tell = |line: &str| lines.push(line.to_owned());
        let rotated = rotate_with(SHORT, dir, &[], goal, &mut tell)?;
        assert_eq!(rotated.others, Vec::new());
        assert_eq!(rotated.keys, key_file::read(dir)?, "what is reported is what is stored");
        Ok(lines)
    }

    fn state(dir: &Path) -> (u16, u16, u16) {
        let keys = key_file::read(dir).expect("readable");
        (keys.oldest().0.0, keys.issuing().0.0, keys.newest().0.0)
    }

    #[test]
    fn a_pool_without_a_server_goes_through_all_steps_at_once_or_one_by_one() {
        let (_temp, dir) = pool();
        let before = key_file::read(&dir).expect("readable");
        assert!(go(&dir, Goal::Retire).is_err(), "there is nothing to retire");
        assert_eq!(go(&dir, Goal::Complete).expect("rotated").len(), 3);
        assert_eq!(state(&dir), (1, 1, 1));
        let after = key_file::read(&dir).expect("readable");
        assert_eq!(after.origin(), before.origin());
        assert!(after.newest().1 != before.newest().1);
        assert_eq!(go(&dir, Goal::Retire).expect("checked").len(), 0);

        for (goal, steps, expected) in [
            (Goal::Prepare, 1, (1, 1, 2)),
            (Goal::Prepare, 0, (1, 1, 2)),
            (Goal::KeepOld, 1, (1, 2, 2)),
            (Goal::KeepOld, 0, (1, 2, 2)),
            (Goal::Retire, 1, (2, 2, 2)),
        ] {
            assert_eq!(go(&dir, goal).expect("rotated").len(), steps, "{goal:?}");
            assert_eq!(state(&dir), expected, "{goal:?}");
        }
    }

    /// Wherever an earlier command died, the next one ends that rotation and begins no other.
    #[test]
    fn an_interrupted_rotation_goes_on() {
        let (_temp, dir) = pool();
        for (done, steps) in [(Goal::Prepare, 2), (Goal::KeepOld, 1)] {
            go(&dir, done).expect("begun");
            let next = key_file::read(&dir).expect("readable").newest();
            assert_eq!(go(&dir, Goal::Complete).expect("ended").len(), steps);
            let keys = key_file::read(&dir).expect("readable");
            assert_eq!((keys.oldest(), keys.rotation()), (next, Rotation::Settled));
        }
        assert_eq!(key_file::read(&dir).expect("readable").oldest().0, KeyGeneration(2));
        let partial = dir.join("pool.key.partial");
        std::fs::write(&partial, "half of a file").expect("writable");
        go(&dir, Goal::Complete).expect("rotated");
        assert!(!partial.exists());
    }

    #[test]
    fn only_one_command_at_a_time_replaces_the_secret() {
        let (_temp, dir) = pool();
        let _lock = LockFile::acquire(&dir.join(LOCK_FILE), Holder::Command).expect("free");
        let error = format!("{:#}", go(&dir, Goal::Complete).expect_err("refused"));
        assert!(error.contains("another command"), "{error}");
        assert_eq!(state(&dir), (0, 0, 0));
    }

    #[test]
    fn a_lock_that_cannot_be_used_is_no_other_command() {
        let (_temp, dir) = pool();
        std::fs::create_dir(dir.join(LOCK_FILE)).expect("made");
        let error = format!("{:#}", go(&dir, Goal::Complete).expect_err("refused"));
        assert!(error.starts_with("cannot begin") && error.contains(LOCK_FILE), "{error}");
        assert_eq!(state(&dir), (0, 0, 0));
    }

    /// Root may rotate once, and the pool's owner the next time.
    #[test]
    fn the_lock_belongs_to_the_owner_of_the_folder() {
        let (_temp, dir) = pool();
        // SAFETY: geteuid() always succeeds.
        let is_root = unsafe { libc::geteuid() } == 0;
        if is_root {
            std::os::unix::fs::chown(&dir, Some(4711), Some(4712)).expect("root may");
        }
        go(&dir, Goal::Prepare).expect("staged");
        let (folder, lock) = (std::fs::metadata(&dir), std::fs::metadata(dir.join(LOCK_FILE)));
        let (folder, lock) = (folder.expect("there"), lock.expect("there"));
        assert_eq!((lock.uid(), lock.gid()), (folder.uid(), folder.gid()));
        assert_eq!(lock.uid() == 4711, is_root);
    }

    /// A server that cannot be asked might go on with the old secret.
    #[test]
    fn a_server_that_accepts_no_call_keeps_the_first_step_back() {
        let (_temp, dir) = pool();
        let socket = dir.join("control.7.sock");
        // A socket of another type refuses the connection, and not as that of an ended server.
        let other = std::os::unix::net::UnixDatagram::bind(&socket).expect("bound");
        let error = format!("{:#}", go(&dir, Goal::Complete).expect_err("refused"));
        assert!(
            error.contains("control.7.sock") && error.contains("nothing has changed"),
            "{error}"
        );
        assert_eq!(state(&dir), (0, 0, 0));
        drop(other);
        assert_eq!(go(&dir, Goal::Complete).expect("its server has ended").len(), 3);
    }

    /// The kernel accepts calls for a process that is stopped, so that only the wait for its answer
    /// shows that it cannot follow.
    #[test]
    fn a_stopped_server_keeps_the_first_step_back_and_the_error_says_for_how_long() {
        let (_temp, dir) = pool();
        let stopped =
            std::os::unix::net::UnixListener::bind(dir.join("control.7.sock")).expect("bound");
        let began = Instant::now();
        let error = format!("{:#}", go(&dir, Goal::Complete).expect_err("refused"));
        let whole = began.elapsed().as_secs();
        let told = error.strip_prefix("waited ").and_then(|rest| rest.split_once(" s; "));
        let (told, rest) = told.expect("it begins with the time");
        let told: u64 = told.parse().expect("whole seconds");
        assert!(SHORT.answer_timeout.as_secs() <= told && told <= whole, "{error}");
        assert!(whole < 60, "a stopped server is waited for as long as for one that works");
        assert!(
            rest.starts_with("nothing has changed") && rest.contains("control.7.sock"),
            "{error}"
        );
        assert_eq!(state(&dir), (0, 0, 0));
        drop(stopped);
        assert_eq!(go(&dir, Goal::Complete).expect("its server has ended").len(), 3);
    }
}
