//! The steps of a rotation: which one comes next, and what must hold before it.
//!
//! The state is the content of `pool.key` and nothing else. So a rotation that was interrupted
//! anywhere goes on from the file.

use fieldstone_proto::Rotation;

use super::report::{KeysReport, NodeKeyState};

/// How far a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The new secret is stored, and signs nothing yet.
    Prepare,
    /// The new secret signs, and the old one is still accepted.
    KeepOld,
    /// The old secret is retired when no volume needs it any more.
    Complete,
    /// A rotation under way ends: the old secret is retired without waiting for volumes.
    Retire,
}

/// A step of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Store a new secret.
    Stage,
    /// Sign with the new secret.
    Issue,
    /// Refuse the old secret.
    Retire,
}

/// Why a command does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoalError {
    /// There is no rotation to end.
    #[error("no rotation is under way, so there is no secret to retire")]
    NothingToRetire,
    /// The rotation before is not over.
    #[error(
        "the rotation before is not over: the old secret is still accepted; retire it first (`pool \
         rotate-key` without options, or with --retire)"
    )]
    NotOver,
}

/// The next step towards the goal; `None` if it is reached. `begun`: this command has made a step,
/// or only checks that the rotation before is over.
///
/// # Errors
/// The goal cannot be reached from the present state.
pub fn next_step(goal: Goal, rotation: &Rotation, begun: bool) -> Result<Option<Step>, GoalError> {
    match (rotation, goal) {
        (Rotation::Settled, _) if begun => Ok(None),
        (Rotation::Settled, Goal::Retire) => Err(GoalError::NothingToRetire),
        (Rotation::Settled, _) => Ok(Some(Step::Stage)),
        (Rotation::Staged(_), Goal::Prepare) => Ok(None),
        (Rotation::Staged(_), _) => Ok(Some(Step::Issue)),
        (Rotation::Issuing(_), Goal::Prepare) => Err(GoalError::NotOver),
        (Rotation::Issuing(_), Goal::KeepOld) => Ok(None),
        (Rotation::Issuing(_), _) => Ok(Some(Step::Retire)),
    }
}

/// What keeps a step back, as text for people; `None` if nothing does. `reports` are those of all
/// processes that have the pool, made after the step before.
pub fn obstacle(
    step: Option<Step>,
    goal: Goal,
    issuing: u16,
    newest: u16,
    reports: &[KeysReport],
) -> Option<String> {
    let late = |report: &&KeysReport| report.newest < newest || report.issuing < issuing;
    if let Some(report) = reports.iter().find(late) {
        return Some(format!("process {} does not have the pool's new secret yet", report.pid));
    }
    match step {
        // Nodes on other machines get the file afterwards.
        None if goal == Goal::Prepare => None,
        // A node that is down reads the secrets when it starts. No rotation begins while a node has
        // not ended the one before: it would lack one secret more.
        Some(Step::Stage | Step::Issue) | None => {
            let mut all = reports.iter().flat_map(|report| &report.nodes);
            if let Some(node) = all.find(|node| node.state == NodeKeyState::Outdated) {
                return Some(format!(
                    "node.{} cannot follow: {}; update it, or restore the newest pool.key",
                    node.node, node.reason
                ));
            }
            let mut nodes = reports.iter().flat_map(|report| &report.nodes);
            let behind = nodes.find(|node| node.state == NodeKeyState::Behind)?;
            Some(format!(
                "node.{} does not have the pool's new secret: {}",
                behind.node, behind.reason
            ))
        }
        Some(Step::Retire) if goal == Goal::Retire => None,
        Some(Step::Retire) => {
            let mut volumes = reports.iter().flat_map(|report| &report.volumes);
            let needs = volumes.find(|volume| volume.generation < issuing)?;
            let volume = &needs.volume;
            Some(match &needs.client {
                None => {
                    format!("the volume {volume} waits for requests that the old secret signed")
                }
                Some(client) => format!(
                    "the client {client} may still use the old secret for the volume {volume}; if \
                     it does not run any more, use --retire, or wait until its capabilities expire \
                     (`pool clients`)"
                ),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::MasterKey;

    use super::super::report::{NodeKeys, VolumeKeys};
    use super::*;

    const NEXT: MasterKey = MasterKey([2; 16]);
    const STATES: [Rotation; 3] =
        [Rotation::Settled, Rotation::Staged(NEXT), Rotation::Issuing(NEXT)];

    #[test]
    fn each_goal_goes_as_far_as_it_says_from_wherever_the_file_is() {
        let table = [
            (Goal::Prepare, [Ok(Some(Step::Stage)), Ok(None), Err(GoalError::NotOver)]),
            (Goal::KeepOld, [Ok(Some(Step::Stage)), Ok(Some(Step::Issue)), Ok(None)]),
            (
                Goal::Complete,
                [Ok(Some(Step::Stage)), Ok(Some(Step::Issue)), Ok(Some(Step::Retire))],
            ),
            (
                Goal::Retire,
                [Err(GoalError::NothingToRetire), Ok(Some(Step::Issue)), Ok(Some(Step::Retire))],
            ),
        ];
        for (goal, expected) in table {
            for (state, expected) in STATES.iter().zip(expected) {
                assert_eq!(next_step(goal, state, false), expected, "{goal:?} {state:?}");
            }
            assert_eq!(
                next_step(goal, &Rotation::Settled, true),
                Ok(None),
                "{goal:?}: no second one"
            );
        }
    }

    fn report(issuing: u16, newest: u16) -> KeysReport {
        let (nodes, volumes) = (Vec::new(), Vec::new());
        KeysReport { pid: 7, oldest: 0, newest, issuing, nodes, volumes }
    }

    #[test]
    fn nodes_that_answer_hold_steps_back_and_those_that_are_down_do_not() {
        for step in [Step::Stage, Step::Issue] {
            let of = |state| {
                let mut report = report(0, 1);
                report.nodes.push(NodeKeys { node: 3, state, reason: "of a test".to_owned() });
                obstacle(Some(step), Goal::Complete, 0, 1, &[report])
            };
            assert_eq!(of(NodeKeyState::Current), None);
            assert_eq!(of(NodeKeyState::Down), None);
            let behind = of(NodeKeyState::Behind).expect("an obstacle");
            assert!(behind.contains("node.3") && behind.contains("of a test"), "{behind}");
            let outdated = of(NodeKeyState::Outdated).expect("an obstacle");
            assert!(outdated.contains("node.3") && outdated.contains("update it"), "{outdated}");
            // The other cause: the file is an old copy.
            assert!(outdated.contains("restore the newest pool.key"), "{outdated}");
        }
    }

    #[test]
    fn volumes_hold_the_retirement_back_unless_it_is_demanded() {
        let with = |client: Option<&String>, generation, goal| {
            let mut report = report(1, 1);
            let volume = "v".to_owned();
            report.volumes.push(VolumeKeys { volume, client: client.cloned(), generation });
            obstacle(Some(Step::Retire), goal, 1, 1, &[report])
        };
        let web = "web".to_owned();
        for (client, whose) in [(None, "the volume v"), (Some(&web), "the client web")] {
            assert_eq!(with(client, 1, Goal::Complete), None);
            assert!(with(client, 0, Goal::Complete).is_some_and(|text| text.contains(whose)));
            assert_eq!(with(client, 0, Goal::Retire), None);
        }
    }

    #[test]
    fn a_process_that_is_a_step_behind_holds_every_step_back() {
        for step in [Some(Step::Issue), Some(Step::Retire), None] {
            let behind = obstacle(step, Goal::Retire, 1, 1, &[report(1, 1), report(0, 1)]);
            assert!(behind.is_some_and(|text| text.contains("process 7")), "{step:?}");
            assert!(obstacle(step, Goal::Retire, 1, 1, &[report(0, 0)]).is_some(), "{step:?}");
        }
    }
}
