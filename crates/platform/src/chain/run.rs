//! Runs a message along a chain: node after node, into other chains and back, until no task is left or the time slice
//! of the run is over.

use std::sync::Arc;

use super::compile::CompiledChain;
use super::host::{Continuation, DebugEvent, ExternalAnswer, ExternalError, Host, NodeError};
use super::message::{ChainMessage, MessageData};
use super::node_time::NodeTimer;
use super::nodes::{ConnectionLabel, NodeOutcome, NodePosition};
use super::paused::PausedRun;
use super::script::ScriptAnswer;
use crate::ids::{EntityId, RuleChainId, Uuid};
use serde_json::Value as Json;

/// Nodes that one message may pass, including derived messages. Ends cycles.
pub const STEPS_MAX: usize = 10_000;

/// Largest size of derived messages that wait for their nodes.
pub const MADE_BYTES_MAX: usize = 16 << 20;

/// Number of nodes after which the run time is checked. Most nodes take less time than the check. It is also checked
/// after a node that made a message, because such a node may take long.
const TIMED_STEPS: u64 = 16;

/// Largest nesting of chains.
pub const DEPTH_MAX: usize = 50;

/// The message is dropped, because its nodes used up their time.
const TOOK_TOO_LONG: &str =
    "the nodes exceeded the time limit of the message (5 seconds of CPU time); the chain does too many look-ups";

/// The connection of failed messages.
const FAILURE: &str = "Failure";

/// The result of running a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainRun {
    /// Nodes that were passed.
    pub executions: u64,
    pub script_executions: u64,
    /// Failures at nodes without a Failure connection. The message failed.
    pub failures: Vec<NodeFailure>,
    /// The message exceeded a limit: number of nodes, size of derived messages or time. Also set if the message left
    /// the node by Failure.
    pub exceeded: Option<Box<NodeFailure>>,
    /// The rest of the run, if its time slice is over. [`super::run_on`] continues it.
    pub paused: Option<Box<PausedRun>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeFailure {
    pub chain: RuleChainId,
    pub node: String,
    pub error: String,
    /// Set if the message may be retried ([`Host::records_failed`]).
    pub at: Option<Box<FailedAt>>,
}

/// Where a message failed, with everything that [`retry`] needs.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedAt {
    pub message: ChainMessage<'static>,
    pub node: usize,
    /// The node's name. If it differs, the chain was changed.
    pub name: String,
    /// Chains and nodes to return to from output nodes; the innermost first.
    pub returns: Vec<(RuleChainId, usize)>,
}

impl ChainRun {
    /// A failure before any node.
    pub fn failed(chain: RuleChainId, error: &str) -> ChainRun {
        ChainRun::changed(chain, String::new(), error)
    }

    /// A continuation failed, because its node no longer exists.
    pub(super) fn changed(chain: RuleChainId, node: String, error: &str) -> ChainRun {
        let failure = NodeFailure {
            chain,
            node,
            error: error.to_owned(),
            at: None,
        };
        ChainRun {
            failures: vec![failure],
            ..ChainRun::default()
        }
    }

    /// Adds the results of another run.
    pub fn add(&mut self, other: ChainRun) {
        self.executions += other.executions;
        self.script_executions += other.script_executions;
        self.failures.extend(other.failures);
        self.exceeded = self.exceeded.take().or(other.exceeded);
        match (&mut self.paused, other.paused) {
            (Some(first), Some(second)) => first.append(*second),
            (paused @ None, Some(second)) => *paused = Some(second),
            (_, None) => {}
        }
    }
}

/// A message that waits for a node.
pub(super) struct NodeTask<'a> {
    pub chain: Arc<CompiledChain>,
    pub node: usize,
    pub message: Arc<ChainMessage<'a>>,
    /// Where to return to from output nodes.
    pub returns: Option<Arc<ReturnAddress>>,
}

#[derive(Debug)]
pub(super) struct ReturnAddress {
    chain: Arc<CompiledChain>,
    node: usize,
    depth: usize,
    before: Option<Arc<ReturnAddress>>,
}

impl ReturnAddress {
    /// Returns the nesting chains and nodes, the innermost first.
    pub fn all(innermost: Option<&Arc<ReturnAddress>>) -> Vec<(RuleChainId, usize)> {
        let mut all = Vec::new();
        let mut outer = innermost;
        while let Some(place) = outer {
            all.push((place.chain.id, place.node));
            outer = place.before.as_ref();
        }
        all
    }

    /// Restores the nesting chains; `None` if a chain or node no longer exists.
    pub fn found(all: &[(RuleChainId, usize)], host: &dyn Host) -> Option<Option<Arc<ReturnAddress>>> {
        let mut returns = None;
        for (depth, (outer, node)) in all.iter().rev().enumerate() {
            let chain = host.chain(*outer).filter(|chain| *node < chain.node_count())?;
            returns = Some(Arc::new(ReturnAddress {
                chain,
                node: *node,
                depth: depth + 1,
                before: returns,
            }));
        }
        Some(returns)
    }
}

/// The state of a node's script.
enum ScriptStep {
    /// `None` if the node needs no script for the message.
    Returned(Option<Json>),
    /// The chain continues with [`script_returned`].
    Waits,
}

/// Time for the next node.
enum TimeLeft {
    Some,
    /// Other messages are next.
    SliceIsOver,
    /// The message has used all of its time.
    None,
}

pub(super) struct ChainRunner<'a, 'h> {
    pub host: &'h mut dyn Host,
    /// The last task is next.
    pub tasks: Vec<NodeTask<'a>>,
    /// Approximate size of the messages in the tasks. Counts all messages made since the list was last empty.
    pub made_bytes: usize,
    /// Nodes that may be passed: less than [`STEPS_MAX`] if the message has passed nodes in earlier runs.
    pub steps_max: u64,
    /// Nodes passed before the pause that this run continues after.
    pub steps_before_pause: u64,
    /// Whether the last node made a message.
    has_made: bool,
    pub timer: NodeTimer,
    /// The answer of the first task's script, if the chain continues because of it.
    answer: Option<ScriptAnswer>,
    pub run: ChainRun,
}

/// Runs a message from the first node.
pub fn run<'a>(chain: &Arc<CompiledChain>, message: ChainMessage<'a>, host: &mut dyn Host) -> ChainRun {
    let tasks = chain.first.map(|node| NodeTask {
        chain: Arc::clone(chain),
        node,
        message: Arc::new(message),
        returns: None,
    });
    ChainRunner::new(tasks, host).finish()
}

/// Continues after a node by this connection, when an answer arrived or a queue reached it. `data` replaces the
/// message's data.
pub fn resume(then: Continuation, label: &str, data: Option<Json>, host: &mut dyn Host) -> ChainRun {
    let changed = |message: &ChainMessage<'static>| {
        let mut changed = message.clone();
        if let Some(data) = data {
            changed.data = MessageData::Json(data);
        }
        changed
    };
    continue_after(then, host, |runner, task| {
        let message = Arc::new(changed(&task.message));
        match label {
            FAILURE => runner.reject(task, Arc::clone(&message), refusal_text(&message), false),
            _ => runner.forward(task, label.to_owned().into(), message),
        }
    })
}

/// Continues after a node that sent an external request: by Success with the result, or by Failure. A failure may be
/// retried.
pub fn returned(then: Continuation, result: Result<ExternalAnswer, ExternalError>, host: &mut dyn Host) -> ChainRun {
    continue_after(then, host, |runner, task| {
        let mut message = ChainMessage::clone(&task.message);
        let metadata = match &result {
            Ok(answer) => &answer.metadata,
            Err(refusal) => &refusal.metadata,
        };
        for (name, value) in metadata {
            message.metadata.put(name.clone(), value.clone());
        }
        match result {
            Ok(answer) => {
                if let Some(data) = answer.data {
                    message.data = MessageData::Json(data);
                }
                runner.forward(task, "Success".into(), Arc::new(message));
            }
            Err(refusal) => {
                message.metadata.put("error", refusal.error.clone());
                runner.reject(task, Arc::new(message), refusal.error, true);
            }
        }
    })
}

fn refusal_text(message: &ChainMessage<'_>) -> String {
    message.json()["error"].as_str().unwrap_or("no answer").to_owned()
}

/// Continues after a node. Fails without a retry if the chain was changed.
fn continue_after(
    then: Continuation,
    host: &mut dyn Host,
    forward: impl FnOnce(&mut ChainRunner<'static, '_>, &NodeTask<'static>),
) -> ChainRun {
    let chain = host.chain(then.chain).filter(|chain| {
        let node = chain.nodes.get(then.node);
        node.is_some_and(|node| then.name.as_deref().is_none_or(|name| *node.name == *name))
    });
    let (Some(chain), Some(returns)) = (chain, ReturnAddress::found(&then.returns, host)) else {
        let name = then.name.unwrap_or_default();
        return ChainRun::changed(then.chain, name, "the rule chain was changed while the message waited");
    };
    let task = NodeTask {
        chain,
        node: then.node,
        message: Arc::new(then.message),
        returns,
    };
    let mut runner = ChainRunner::new(None, host);
    forward(&mut runner, &task);
    runner.finish()
}

/// Repeats the failed node with its message. Fails without a retry if the chain was changed.
pub fn retry(id: RuleChainId, at: FailedAt, host: &mut dyn Host) -> ChainRun {
    repeat(id, at, None, host)
}

/// Continues at a node whose script ran outside of the chain. Fails without a retry if the chain was changed.
pub fn script_returned(then: Continuation, answer: ScriptAnswer, host: &mut dyn Host) -> ChainRun {
    let at = FailedAt {
        message: then.message,
        node: then.node,
        name: then.name.unwrap_or_default(),
        returns: then.returns,
    };
    repeat(then.chain, at, Some(answer), host)
}

fn repeat(id: RuleChainId, at: FailedAt, answer: Option<ScriptAnswer>, host: &mut dyn Host) -> ChainRun {
    let is_retry = answer.is_none();
    let chain = host.chain(id).filter(|chain| {
        let node = chain.nodes.get(at.node);
        node.is_some_and(|node| *node.name == *at.name)
    });
    match (chain, ReturnAddress::found(&at.returns, host)) {
        (Some(chain), Some(returns)) => {
            let task = NodeTask {
                chain,
                node: at.node,
                message: Arc::new(at.message),
                returns,
            };
            let mut runner = ChainRunner::new(Some(task), host);
            runner.answer = answer;
            runner.finish()
        }
        _ => {
            let problem = match is_retry {
                true => "the rule chain was changed while the message waited for its retry",
                false => "the rule chain was changed while the message waited for a script",
            };
            ChainRun::changed(id, at.name, problem)
        }
    }
}

/// Runs the message of a periodic node along its chain.
pub fn tick(chain: &Arc<CompiledChain>, node: usize, tenant: Uuid, service: &str, host: &mut dyn Host) -> ChainRun {
    let Some(source) = chain.nodes.get(node) else {
        return ChainRun::default();
    };
    let now_ms = host.now_ms();
    let Some(message) = source.kind.tick(tenant, service, now_ms) else {
        return ChainRun::default();
    };
    let is_own = host.tenant_of(message.originator) == chain.tenant;
    let task = NodeTask {
        chain: Arc::clone(chain),
        node,
        message: Arc::new(message),
        returns: None,
    };
    if !is_own {
        source.kind.script_failed();
        let mut runner = ChainRunner::new(None, host);
        let problem = foreign_originator(task.message.originator);
        let task = NodeTask {
            message: Arc::new(ChainMessage::empty(tenant, now_ms)),
            ..task
        };
        runner.fail(&task, problem);
        return runner.finish();
    }
    if source.kind.may_run_script() {
        return ChainRunner::new(Some(task), host).finish();
    }
    let mut runner = ChainRunner::new(None, host);
    runner.forward(&task, "Success".into(), Arc::clone(&task.message));
    runner.finish()
}

impl<'a, 'h> ChainRunner<'a, 'h> {
    pub fn new(first: Option<NodeTask<'a>>, host: &'h mut dyn Host) -> ChainRunner<'a, 'h> {
        ChainRunner {
            steps_max: host.steps_left().min(STEPS_MAX as u64),
            timer: NodeTimer::begin(host),
            host,
            tasks: first.into_iter().collect(),
            made_bytes: 0,
            steps_before_pause: 0,
            has_made: false,
            answer: None,
            run: ChainRun::default(),
        }
    }

    pub fn finish(mut self) -> ChainRun {
        while let Some(task) = self.tasks.pop() {
            if self.run.executions >= self.steps_max {
                let problem = match self.steps_max == STEPS_MAX as u64 {
                    true => format!("the message passed {STEPS_MAX} nodes; check the chains for a cycle"),
                    false => "the message and its derived messages passed too many nodes; check the chains for a cycle"
                        .to_owned(),
                };
                self.fail_at_limit(&task, problem);
                break;
            }
            match self.time_left() {
                TimeLeft::Some => self.step(task),
                TimeLeft::SliceIsOver => {
                    self.tasks.push(task);
                    self.pause();
                    break;
                }
                TimeLeft::None => {
                    self.tasks.clear();
                    self.steps_max = 0;
                    self.fail_at_limit(&task, TOOK_TOO_LONG.to_owned());
                    break;
                }
            }
        }
        self.timer.lap(self.host);
        self.host.passed(self.run.executions);
        self.run
    }

    fn time_left(&mut self) -> TimeLeft {
        let has_made = std::mem::take(&mut self.has_made);
        if !has_made && !self.run.executions.is_multiple_of(TIMED_STEPS) {
            return TimeLeft::Some;
        }
        // Also checked at the first node, because earlier runs for the message may have used up its time.
        if self.run.executions > 0 {
            self.timer.lap(self.host);
        }
        if !self.host.has_time_for_nodes() {
            TimeLeft::None
        } else if self.host.is_slice_over() && self.answer.is_none() {
            TimeLeft::SliceIsOver
        } else {
            TimeLeft::Some
        }
    }

    /// Ends the run. Its tasks are continued later.
    fn pause(&mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        let steps = self.steps_before_pause + self.run.executions;
        self.run.paused = Some(Box::new(PausedRun::of(tasks, self.made_bytes, steps)));
    }

    fn step(&mut self, task: NodeTask<'a>) {
        let node = &task.chain.nodes[task.node];
        self.run.executions += 1;
        // More than `STEPS_MAX` waiting tasks can never all run.
        if self.tasks.len() > STEPS_MAX {
            self.tasks.clear();
            return self.fail_at_limit(
                &task,
                format!("the message would pass more than {STEPS_MAX} nodes; check the chains for a cycle"),
            );
        }
        if self.made_bytes > MADE_BYTES_MAX {
            self.tasks.clear();
            self.made_bytes = 0;
            return self.fail_at_limit(
                &task,
                format!("messages derived from the message exceed {} MiB", MADE_BYTES_MAX >> 20),
            );
        }
        // The node was counted when its script was started. A generator has no input.
        let answer = self.answer.take();
        if answer.is_none() && !node.kind.is_generator() {
            node.counts.message();
            if node.debugging.records_all(|| self.host.now_ms()) {
                self.debug(&task, &task.message, None, None);
            }
        }
        let at = NodePosition {
            chain: task.chain.id,
            index: task.node,
            node,
            returns: task.returns.as_ref(),
        };
        let result = match self.run_script(at, &task, answer) {
            Ok(ScriptStep::Waits) => return,
            Ok(ScriptStep::Returned(result)) => result,
            Err(error) => {
                node.kind.script_failed();
                return self.fail(&task, error.0);
            }
        };
        let outcome = node.kind.process(at, Arc::clone(&task.message), result, self.host);
        match outcome {
            Ok(NodeOutcome::Done) => {}
            Ok(NodeOutcome::Next(label, message)) => self.forward(&task, label, message),
            Ok(NodeOutcome::NextMany(all)) => {
                // Tasks are taken from the end, so the first message is pushed last.
                for (label, message) in all.into_iter().rev() {
                    self.forward(&task, label, message);
                }
            }
            Ok(NodeOutcome::EnterChain { chain, returns }) => self.enter(task, chain, returns),
            Ok(NodeOutcome::LeaveChain) => self.leave(&task),
            Err(error) => self.fail(&task, error.0),
        }
    }

    /// Runs the node's script, if it has one for this message.
    fn run_script(
        &mut self,
        at: NodePosition<'_>,
        task: &NodeTask<'a>,
        answer: Option<ScriptAnswer>,
    ) -> Result<ScriptStep, NodeError> {
        if !at.node.kind.may_run_script() {
            return Ok(ScriptStep::Returned(None));
        }
        let is_new = answer.is_none();
        if is_new {
            if let Some(refusal) = self.host.script_refusal(task.message.originator) {
                return Err(NodeError::new(refusal));
            }
            self.run.script_executions += 1;
        }
        let Some((script, input)) = at.node.kind.script(&task.message, self.host)? else {
            return Ok(ScriptStep::Returned(None));
        };
        let answer = match answer {
            Some(answer) => Some(answer),
            // Time of scripts is counted separately.
            None => self.timer.without(|| {
                let call = script.call(&input)?;
                self.host.run_script(call, &|| at.continuation(&task.message))
            })?,
        };
        let Some(answer) = answer else {
            return Ok(ScriptStep::Waits);
        };
        self.host.add_script_time(answer.cpu);
        script.result(answer).map(|result| ScriptStep::Returned(Some(result)))
    }

    fn forward(&mut self, task: &NodeTask<'a>, label: ConnectionLabel, message: Arc<ChainMessage<'a>>) {
        let originator = message.originator;
        if originator != task.message.originator && self.host.tenant_of(originator) != task.chain.tenant {
            return self.fail(task, foreign_originator(originator));
        }
        let debugging = task.chain.nodes[task.node].debugging;
        if debugging.records_all(|| self.host.now_ms()) {
            self.debug(task, &message, Some(&label), None);
        }
        self.push_made(task, &label, &message);
    }

    /// Queues a message made by a node. Without other tasks it replaces its source, so its size does not count.
    fn push_made(&mut self, task: &NodeTask<'a>, label: &str, message: &Arc<ChainMessage<'a>>) -> bool {
        let is_alone = self.tasks.is_empty();
        let is_pushed = self.push_targets(&task.chain, task.node, task.returns.as_ref(), label, message);
        let is_made = !Arc::ptr_eq(message, &task.message);
        self.has_made |= is_made;
        if is_alone {
            self.made_bytes = 0;
        } else if is_pushed && is_made {
            self.made_bytes = self.made_bytes.saturating_add(message.weight());
        }
        is_pushed
    }

    /// Queues a message for the targets of a connection. Returns false if there are none.
    fn push_targets(
        &mut self,
        chain: &Arc<CompiledChain>,
        node: usize,
        returns: Option<&Arc<ReturnAddress>>,
        label: &str,
        message: &Arc<ChainMessage<'a>>,
    ) -> bool {
        let start = self.tasks.len();
        self.tasks.extend(chain.targets(node, label).map(|target| NodeTask {
            chain: Arc::clone(chain),
            node: target,
            message: Arc::clone(message),
            returns: returns.cloned(),
        }));
        self.tasks[start..].reverse();
        self.tasks.len() > start
    }

    fn enter(&mut self, task: NodeTask<'a>, id: RuleChainId, is_returning: bool) {
        let depth = task.returns.as_ref().map_or(0, |returns| returns.depth);
        if depth >= DEPTH_MAX {
            return self.fail(
                &task,
                format!("rule chains are nested more than {DEPTH_MAX} deep; check them for a cycle"),
            );
        }
        let chain = self.host.chain(id).filter(|chain| chain.tenant == task.chain.tenant);
        let Some(chain) = chain else {
            return self.fail(&task, format!("rule chain {id} does not exist in this tenant"));
        };
        let Some(first) = chain.first else { return };
        let returns = Arc::new(ReturnAddress {
            chain: Arc::clone(&task.chain),
            node: task.node,
            depth: depth + 1,
            before: task.returns.clone(),
        });
        self.tasks.push(NodeTask {
            chain,
            node: first,
            message: task.message,
            returns: if is_returning { Some(returns) } else { task.returns },
        });
    }

    /// Returns to the calling chain by the connection with the output node's name.
    fn leave(&mut self, task: &NodeTask<'a>) {
        if let Some(returns) = &task.returns {
            let label = &task.chain.nodes[task.node].name;
            self.push_targets(
                &returns.chain,
                returns.node,
                returns.before.as_ref(),
                label,
                &task.message,
            );
        }
    }

    /// Forwards the message by the Failure connection with the error in the metadata. Without one the message failed.
    fn fail(&mut self, task: &NodeTask<'a>, error: String) {
        let mut message = ChainMessage::clone(&task.message);
        message.metadata.put("error", error.clone());
        self.reject(task, Arc::new(message), error, true);
    }

    /// As [`ChainRunner::fail`], for a message that exceeded a limit. A retry would repeat the error.
    fn fail_at_limit(&mut self, task: &NodeTask<'a>, error: String) {
        self.run.exceeded = Some(Box::new(NodeFailure {
            chain: task.chain.id,
            node: task.chain.nodes[task.node].name.to_string(),
            error: error.clone(),
            at: None,
        }));
        let mut message = ChainMessage::clone(&task.message);
        message.metadata.put("error", error.clone());
        self.reject(task, Arc::new(message), error, false);
    }

    /// Forwards a message by the Failure connection. Without one the task is recorded as failed, and retried if
    /// possible.
    fn reject(&mut self, task: &NodeTask<'a>, message: Arc<ChainMessage<'a>>, error: String, may_be_retried: bool) {
        let node = &task.chain.nodes[task.node];
        node.counts.error();
        if node.debugging.wants_failures(|| self.host.now_ms()) {
            self.debug(task, &task.message, Some(FAILURE), Some(&error));
        }
        let is_handled = self.run.executions < self.steps_max && self.push_made(task, FAILURE, &message);
        if !is_handled {
            let wants_retry = may_be_retried && self.host.records_failed();
            let keeps = wants_retry && self.host.take_retry_bytes(task.message.weight());
            self.run.failures.push(NodeFailure {
                chain: task.chain.id,
                node: node.name.to_string(),
                error: match wants_retry && !keeps {
                    true => format!("{error} (not retried: the message created more data than one message may)"),
                    false => error,
                },
                at: keeps.then(|| Box::new(failed_at(task))),
            });
        }
    }

    fn debug(&mut self, task: &NodeTask<'a>, message: &ChainMessage<'a>, label: Option<&str>, error: Option<&str>) {
        self.host.debug(&DebugEvent {
            chain: task.chain.id,
            node: &task.chain.nodes[task.node].name,
            node_id: task.chain.nodes[task.node].id,
            node_index: task.node,
            is_input: label.is_none(),
            label,
            error,
            message,
        });
    }
}

/// Checks the number and size of messages that a node is about to make.
pub(super) fn check_made(count: usize, weight_of_each: usize) -> Result<(), NodeError> {
    if count > STEPS_MAX {
        return Err(NodeError::new(format!(
            "the node would make {count} messages of one; the limit is {STEPS_MAX}"
        )));
    }
    if count.saturating_mul(weight_of_each) > MADE_BYTES_MAX {
        return Err(NodeError::new(format!(
            "the {count} messages that the node would make exceed {} MiB",
            MADE_BYTES_MAX >> 20
        )));
    }
    Ok(())
}

fn foreign_originator(originator: EntityId) -> String {
    format!(
        "{} {} does not exist in this tenant",
        originator.kind.name(),
        originator.id
    )
}

fn failed_at(task: &NodeTask<'_>) -> FailedAt {
    FailedAt {
        message: ChainMessage::clone(&task.message).into_owned(),
        node: task.node,
        name: task.chain.nodes[task.node].name.to_string(),
        returns: ReturnAddress::all(task.returns.as_ref()),
    }
}
