//! A message along a chain: node after node, into other chains and back, until nothing is left to do.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::compile::Chain;
use super::host::{Answer, Continuation, DebugEvent, Host, Refusal};
use super::message::{Data, Message};
use super::nodes::{At, Label, Outcome};
use crate::ids::{EntityId, RuleChainId, Uuid};
use serde_json::Value as Json;

/// Nodes that one message passes, with all that comes of it; a circle ends here.
pub const STEPS_MAX: usize = 10_000;

/// Of messages that nodes have made of one and that wait for their nodes.
const MADE_BYTES_MAX: usize = 256 << 20;

/// After so many nodes the clock is looked at: most take less time than that.
const TIMED_STEPS: u64 = 16;

/// Chains within chains.
pub const DEPTH_MAX: usize = 50;

/// Why nothing more is done with a message.
const TOOK_TOO_LONG: &str = "nodes have taken too long of the message, with all that came of it: it looks too much up";

/// The connection of what failed.
const FAILURE: &str = "Failure";

/// What became of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Nodes that were passed.
    pub executions: u64,
    pub script_executions: u64,
    /// Of nodes with nothing connected to their Failure: the message failed.
    pub failures: Vec<Failure>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub chain: RuleChainId,
    pub node: String,
    pub error: String,
    /// If the host wants to try it again ([`Host::keeps_failed`]).
    pub at: Option<Box<FailedAt>>,
}

/// Where a message failed, with all that [`retry`] needs.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedAt {
    pub message: Message<'static>,
    pub node: usize,
    /// Of the node: if it is another one meanwhile, the chain was changed.
    pub name: String,
    /// Chains and nodes to go on at when chains put something out; the innermost first.
    pub returns: Vec<(RuleChainId, usize)>,
}

impl Run {
    /// Without having passed a node.
    pub fn failed(chain: RuleChainId, error: &str) -> Run {
        Run::changed(chain, String::new(), error)
    }

    /// It was to go on at a node that is not there any more.
    fn changed(chain: RuleChainId, node: String, error: &str) -> Run {
        let failure = Failure {
            chain,
            node,
            error: error.to_owned(),
            at: None,
        };
        Run {
            failures: vec![failure],
            ..Run::default()
        }
    }

    /// With what another run did.
    pub fn add(&mut self, other: Run) {
        self.executions += other.executions;
        self.script_executions += other.script_executions;
        self.failures.extend(other.failures);
    }
}

/// What is still to be done: a message before a node.
struct Task<'a> {
    chain: Arc<Chain>,
    node: usize,
    message: Rc<Message<'a>>,
    /// Where to go on when the chain puts something out.
    returns: Option<Rc<Return>>,
}

#[derive(Debug)]
pub(super) struct Return {
    chain: Arc<Chain>,
    node: usize,
    depth: usize,
    before: Option<Rc<Return>>,
}

impl Return {
    /// The innermost first.
    pub fn all(innermost: Option<&Rc<Return>>) -> Vec<(RuleChainId, usize)> {
        let mut all = Vec::new();
        let mut outer = innermost;
        while let Some(place) = outer {
            all.push((place.chain.id, place.node));
            outer = place.before.as_ref();
        }
        all
    }

    /// The other way round; `None`: one of the chains is not there any more, or has no such node.
    fn found(all: &[(RuleChainId, usize)], host: &dyn Host) -> Option<Option<Rc<Return>>> {
        let mut returns = None;
        for (depth, (outer, node)) in all.iter().rev().enumerate() {
            let chain = host.chain(*outer).filter(|chain| *node < chain.node_count())?;
            returns = Some(Rc::new(Return {
                chain,
                node: *node,
                depth: depth + 1,
                before: returns,
            }));
        }
        Some(returns)
    }
}

struct Runner<'a, 'h> {
    host: &'h mut dyn Host,
    /// The last one is next.
    tasks: Vec<Task<'a>>,
    /// About, of the messages in the tasks: each that was made since there was no task is counted.
    made_bytes: usize,
    /// Nodes that may be passed: fewer than [`STEPS_MAX`] if the message has been elsewhere.
    steps_max: u64,
    /// The host knows how long nodes took before. Later by what scripts have taken since, which are counted apart.
    timed: Instant,
    run: Run,
}

/// From the first node on.
pub fn run<'a>(chain: &Arc<Chain>, message: Message<'a>, host: &mut dyn Host) -> Run {
    let tasks = chain.first.map(|node| Task {
        chain: Arc::clone(chain),
        node,
        message: Rc::new(message),
        returns: None,
    });
    Runner::new(tasks, host).finish()
}

/// From behind a node on, by this connection: an answer came, or a queue's turn. `data` replaces that of the message.
pub fn resume(then: Continuation, label: &str, data: Option<Json>, host: &mut dyn Host) -> Run {
    let changed = |message: &Message<'static>| {
        let mut changed = message.clone();
        if let Some(data) = data {
            changed.data = Data::Json(data);
        }
        changed
    };
    go_on_behind(then, host, |runner, task| {
        let message = Rc::new(changed(&task.message));
        match label {
            FAILURE => runner.refused(task, Rc::clone(&message), refusal_text(&message), false),
            _ => runner.go_on(task, label.to_owned().into(), message),
        }
    })
}

/// From behind a node on that sent something to another system: by Success with what that said, or by Failure. What fails so may be tried again.
pub fn returned(then: Continuation, said: Result<Answer, Refusal>, host: &mut dyn Host) -> Run {
    go_on_behind(then, host, |runner, task| {
        let mut message = Message::clone(&task.message);
        let metadata = match &said {
            Ok(answer) => &answer.metadata,
            Err(refusal) => &refusal.metadata,
        };
        for (name, value) in metadata {
            message.metadata.put(name.clone(), value.clone());
        }
        match said {
            Ok(answer) => {
                if let Some(data) = answer.data {
                    message.data = Data::Json(data);
                }
                runner.go_on(task, "Success".into(), Rc::new(message));
            }
            Err(refusal) => {
                message.metadata.put("error", refusal.error.clone());
                runner.refused(task, Rc::new(message), refusal.error, true);
            }
        }
    })
}

fn refusal_text(message: &Message<'_>) -> String {
    message.json()["error"].as_str().unwrap_or("no answer").to_owned()
}

/// A chain that was changed meanwhile fails for good.
fn go_on_behind(
    then: Continuation,
    host: &mut dyn Host,
    go_on: impl FnOnce(&mut Runner<'static, '_>, &Task<'static>),
) -> Run {
    let chain = host.chain(then.chain).filter(|chain| {
        let node = chain.nodes.get(then.node);
        node.is_some_and(|node| then.name.as_deref().is_none_or(|name| *node.name == *name))
    });
    let (Some(chain), Some(returns)) = (chain, Return::found(&then.returns, host)) else {
        let name = then.name.unwrap_or_default();
        return Run::changed(then.chain, name, "the rule chain was changed while the message waited");
    };
    let task = Task {
        chain,
        node: then.node,
        message: Rc::new(then.message),
        returns,
    };
    let mut runner = Runner::new(None, host);
    go_on(&mut runner, &task);
    runner.finish()
}

/// At the node that failed, with the message that it got. A chain that was changed meanwhile fails for good.
pub fn retry(id: RuleChainId, at: FailedAt, host: &mut dyn Host) -> Run {
    let chain = host.chain(id).filter(|chain| {
        let node = chain.nodes.get(at.node);
        node.is_some_and(|node| *node.name == *at.name)
    });
    match (chain, Return::found(&at.returns, host)) {
        (Some(chain), Some(returns)) => {
            let task = Task {
                chain,
                node: at.node,
                message: Rc::new(at.message),
                returns,
            };
            Runner::new(Some(task), host).finish()
        }
        _ => {
            let problem = "the rule chain was changed while the message waited for its retry";
            Run::changed(id, at.name, problem)
        }
    }
}

/// What a periodic node says, along its chain.
pub fn tick(chain: &Arc<Chain>, node: usize, tenant: Uuid, service: &str, host: &mut dyn Host) -> Run {
    let Some(source) = chain.nodes.get(node) else {
        return Run::default();
    };
    let said = source.kind.tick(tenant, service, host).map_err(|error| error.0);
    let now_ms = host.now_ms();
    let mut runner = Runner::new(None, host);
    let of = |message| Task {
        chain: Arc::clone(chain),
        node,
        message: Rc::new(message),
        returns: None,
    };
    let is_own = |host: &dyn Host, message: &Message<'_>| host.tenant_of(message.originator) == chain.tenant;
    match said {
        Ok(None) => {}
        Ok(Some(message)) if is_own(runner.host, &message) => {
            let task = of(message);
            runner.go_on(&task, "Success".into(), Rc::clone(&task.message));
        }
        Ok(Some(message)) => runner.fail_tick(&of(Message::empty(tenant, now_ms)), strange(message.originator)),
        Err(error) => runner.fail_tick(&of(Message::empty(tenant, now_ms)), error),
    }
    runner.finish()
}

impl<'a, 'h> Runner<'a, 'h> {
    fn new(first: Option<Task<'a>>, host: &'h mut dyn Host) -> Runner<'a, 'h> {
        Runner {
            steps_max: host.steps_left().min(STEPS_MAX as u64),
            host,
            tasks: first.into_iter().collect(),
            made_bytes: 0,
            timed: Instant::now(),
            run: Run::default(),
        }
    }

    fn finish(mut self) -> Run {
        while let Some(task) = self.tasks.pop() {
            if self.run.executions >= self.steps_max {
                let problem = match self.steps_max == STEPS_MAX as u64 {
                    true => format!("the message passed {STEPS_MAX} nodes: is there a circle?"),
                    false => {
                        "the message passed too many nodes, with all that came of it: is there a circle?".to_owned()
                    }
                };
                self.fail_for_good(&task, problem);
                break;
            }
            if !self.has_time() {
                self.tasks.clear();
                self.steps_max = 0;
                self.fail_for_good(&task, TOOK_TOO_LONG.to_owned());
                break;
            }
            self.step(task);
        }
        self.host.nodes_took(self.timed.elapsed());
        self.host.passed(self.run.executions);
        self.run
    }

    fn has_time(&mut self) -> bool {
        if !self.run.executions.is_multiple_of(TIMED_STEPS) {
            return true;
        }
        // At the first one, too: what has come of the message elsewhere may have taken all of it.
        if self.run.executions > 0 {
            let now = Instant::now();
            self.host.nodes_took(now.saturating_duration_since(self.timed));
            self.timed = now;
        }
        self.host.has_time_for_nodes()
    }

    fn step(&mut self, task: Task<'a>) {
        let node = &task.chain.nodes[task.node];
        self.run.executions += 1;
        // More can never be passed.
        if self.tasks.len() > STEPS_MAX {
            self.tasks.clear();
            return self.fail_for_good(
                &task,
                format!("the message would pass more than {STEPS_MAX} nodes: is there a circle?"),
            );
        }
        if self.made_bytes > MADE_BYTES_MAX {
            self.tasks.clear();
            self.made_bytes = 0;
            return self.fail_for_good(
                &task,
                format!("nodes have made more than {} MiB of the message", MADE_BYTES_MAX >> 20),
            );
        }
        node.counts.message();
        let originator = task.message.originator;
        let has_script = node.kind.has_script();
        if has_script {
            if let Some(refusal) = self.host.script_refusal(originator) {
                return self.fail(&task, refusal.to_owned());
            }
            self.run.script_executions += 1;
        }
        if node.debugging.wants_all(|| self.host.now_ms()) {
            self.debug(&task, &task.message, None, None);
        }
        let at = At {
            chain: task.chain.id,
            index: task.node,
            node,
            returns: task.returns.as_ref(),
        };
        let started = has_script.then(Instant::now);
        let outcome = node.kind.process(at, Rc::clone(&task.message), self.host);
        if let Some(started) = started {
            let took = started.elapsed();
            self.timed += took;
            self.host.script_took(originator, took);
        }
        match outcome {
            Ok(Outcome::Ends) => {}
            Ok(Outcome::Goes(label, message)) => self.go_on(&task, label, message),
            Ok(Outcome::GoesMany(all)) => {
                // The first one is to be next: tasks are taken from the end.
                for (label, message) in all.into_iter().rev() {
                    self.go_on(&task, label, message);
                }
            }
            Ok(Outcome::Enters { chain, returns }) => self.enter(task, chain, returns),
            Ok(Outcome::Leaves) => self.leave(&task),
            Err(error) => self.fail(&task, error.0),
        }
    }

    fn go_on(&mut self, task: &Task<'a>, label: Label, message: Rc<Message<'a>>) {
        let originator = message.originator;
        if originator != task.message.originator && self.host.tenant_of(originator) != task.chain.tenant {
            return self.fail(task, strange(originator));
        }
        let debugging = task.chain.nodes[task.node].debugging;
        if debugging.wants_all(|| self.host.now_ms()) {
            self.debug(task, &message, Some(&label), None);
        }
        self.push_made(task, &label, &message);
    }

    /// What a node has made of its task. Alone it takes no more than what it was made of.
    fn push_made(&mut self, task: &Task<'a>, label: &str, message: &Rc<Message<'a>>) -> bool {
        let is_alone = self.tasks.is_empty();
        let is_pushed = self.push_targets(&task.chain, task.node, task.returns.as_ref(), label, message);
        if is_alone {
            self.made_bytes = 0;
        } else if is_pushed && !Rc::ptr_eq(message, &task.message) {
            self.made_bytes = self.made_bytes.saturating_add(message.weight());
        }
        is_pushed
    }

    /// Whether anything is connected there.
    fn push_targets(
        &mut self,
        chain: &Arc<Chain>,
        node: usize,
        returns: Option<&Rc<Return>>,
        label: &str,
        message: &Rc<Message<'a>>,
    ) -> bool {
        let start = self.tasks.len();
        self.tasks.extend(chain.targets(node, label).map(|target| Task {
            chain: Arc::clone(chain),
            node: target,
            message: Rc::clone(message),
            returns: returns.cloned(),
        }));
        self.tasks[start..].reverse();
        self.tasks.len() > start
    }

    fn enter(&mut self, task: Task<'a>, id: RuleChainId, is_returning: bool) {
        let depth = task.returns.as_ref().map_or(0, |returns| returns.depth);
        if depth >= DEPTH_MAX {
            return self.fail(
                &task,
                format!("{DEPTH_MAX} rule chains within each other: is there a circle?"),
            );
        }
        let chain = self.host.chain(id).filter(|chain| chain.tenant == task.chain.tenant);
        let Some(chain) = chain else {
            return self.fail(&task, format!("there is no rule chain {id}"));
        };
        let Some(first) = chain.first else { return };
        let returns = Rc::new(Return {
            chain: Arc::clone(&task.chain),
            node: task.node,
            depth: depth + 1,
            before: task.returns.clone(),
        });
        self.tasks.push(Task {
            chain,
            node: first,
            message: task.message,
            returns: if is_returning { Some(returns) } else { task.returns },
        });
    }

    /// The name of the output node is the connection by which the message goes on.
    fn leave(&mut self, task: &Task<'a>) {
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

    /// By the Failure connection with the error in the metadata; without one the message failed.
    fn fail(&mut self, task: &Task<'a>, error: String) {
        let mut message = Message::clone(&task.message);
        message.metadata.put("error", error.clone());
        self.refused(task, Rc::new(message), error, true);
    }

    /// As [`Runner::fail`]; the next try would come to the same.
    fn fail_for_good(&mut self, task: &Task<'a>, error: String) {
        let mut message = Message::clone(&task.message);
        message.metadata.put("error", error.clone());
        self.refused(task, Rc::new(message), error, false);
    }

    /// As it goes by the Failure connection; without one the task is tried again, if it may be.
    fn refused(&mut self, task: &Task<'a>, message: Rc<Message<'a>>, error: String, may_be_retried: bool) {
        let node = &task.chain.nodes[task.node];
        node.counts.error();
        if node.debugging.wants_failures(|| self.host.now_ms()) {
            self.debug(task, &task.message, Some(FAILURE), Some(&error));
        }
        let is_handled = self.run.executions < self.steps_max && self.push_made(task, FAILURE, &message);
        if !is_handled {
            let wants_retry = may_be_retried && self.host.keeps_failed();
            let keeps = wants_retry && self.host.keep_failed(task.message.weight());
            self.run.failures.push(Failure {
                chain: task.chain.id,
                node: node.name.to_string(),
                error: match wants_retry && !keeps {
                    true => format!("{error} (not tried again: too much has come of the message)"),
                    false => error,
                },
                at: keeps.then(|| Box::new(failed_at(task))),
            });
        }
    }

    /// What was to be said is not tried again: the next is soon to come.
    fn fail_tick(&mut self, task: &Task<'a>, error: String) {
        self.fail(task, error);
        for failure in &mut self.run.failures {
            failure.at = None;
        }
    }

    fn debug(&mut self, task: &Task<'a>, message: &Message<'a>, label: Option<&str>, error: Option<&str>) {
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

fn strange(originator: EntityId) -> String {
    format!(
        "there is no {} {} in this tenant",
        originator.kind.name(),
        originator.id
    )
}

fn failed_at(task: &Task<'_>) -> FailedAt {
    FailedAt {
        message: Message::clone(&task.message).into_owned(),
        node: task.node,
        name: task.chain.nodes[task.node].name.to_string(),
        returns: Return::all(task.returns.as_ref()),
    }
}
