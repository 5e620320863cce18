//! Runs that were paused, because their time slice was over. [`run_on`] continues them.
//!
//! A paused run owns its messages. Tasks that share a message still share it, in memory and in the stored record.

use std::collections::HashMap;
use std::sync::Arc;

use super::host::Host;
use super::message::ChainMessage;
use super::node_time::NodeTimer;
use super::run::{ChainRun, ChainRunner, NodeTask, ReturnAddress, STEPS_MAX};
use crate::ids::RuleChainId;

/// Chains and nodes to return to from output nodes; the innermost first.
pub type ReturnPath = Arc<[(RuleChainId, usize)]>;

/// Approximate memory of a task without its message.
const TASK_BYTES: usize = 128;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PausedRun {
    /// The last task is next.
    pub tasks: Vec<PausedTask>,
    pub made_bytes: usize,
    /// Nodes that the message has passed.
    pub steps: u64,
}

/// A message that waits for a node.
#[derive(Clone, Debug, PartialEq)]
pub struct PausedTask {
    pub chain: RuleChainId,
    pub node: usize,
    /// The node's name. If it differs, the chain was changed.
    pub name: Arc<str>,
    pub message: Arc<ChainMessage<'static>>,
    pub returns: ReturnPath,
}

impl PausedRun {
    /// Moves the tasks. Copies a message only if the outside still uses it.
    pub(super) fn of(tasks: Vec<NodeTask<'_>>, made_bytes: usize, steps: u64) -> PausedRun {
        let (mut indexes, mut messages) = (HashMap::new(), Vec::new());
        let mut places = Vec::with_capacity(tasks.len());
        let mut last: Option<(Option<Arc<ReturnAddress>>, ReturnPath)> = None;
        for task in tasks {
            let index = *indexes.entry(Arc::as_ptr(&task.message).addr()).or_insert_with(|| {
                messages.push(Arc::clone(&task.message));
                messages.len() - 1
            });
            let known = last
                .as_ref()
                .filter(|(returns, _)| is_same(returns.as_ref(), task.returns.as_ref()));
            let returns = match known {
                Some((_, returns)) => Arc::clone(returns),
                None => ReturnAddress::all(task.returns.as_ref()).into(),
            };
            let name: Arc<str> = Arc::from(&*task.chain.nodes[task.node].name);
            places.push((task.chain.id, task.node, name, index, Arc::clone(&returns)));
            last = Some((task.returns, returns));
        }
        // Each message has one owner now.
        let messages = messages
            .into_iter()
            .map(|message| Arc::unwrap_or_clone(message).into_owned());
        let messages: Vec<Arc<ChainMessage<'static>>> = messages.map(Arc::new).collect();
        let tasks = places
            .into_iter()
            .map(|(chain, node, name, index, returns)| PausedTask {
                chain,
                node,
                name,
                message: Arc::clone(&messages[index]),
                returns,
            });
        PausedRun {
            tasks: tasks.collect(),
            made_bytes,
            steps,
        }
    }

    /// Adds a run that continues after this one.
    pub fn append(&mut self, later: PausedRun) {
        let tasks = std::mem::replace(&mut self.tasks, later.tasks);
        self.tasks.extend(tasks);
        self.made_bytes = self.made_bytes.saturating_add(later.made_bytes);
        self.steps = self.steps.max(later.steps);
    }

    /// The messages of the tasks, each once, and the index of each task's message.
    pub fn messages(&self) -> (Vec<&Arc<ChainMessage<'static>>>, Vec<usize>) {
        let (mut indexes, mut messages) = (HashMap::new(), Vec::new());
        let of_tasks = self.tasks.iter().map(|task| {
            *indexes.entry(Arc::as_ptr(&task.message).addr()).or_insert_with(|| {
                messages.push(&task.message);
                messages.len() - 1
            })
        });
        let of_tasks = of_tasks.collect();
        (messages, of_tasks)
    }

    /// Approximate size in memory.
    pub fn weight(&self) -> usize {
        let messages = self.messages().0.into_iter().map(|message| message.weight());
        messages.sum::<usize>() + self.tasks.len() * TASK_BYTES
    }
}

fn is_same(one: Option<&Arc<ReturnAddress>>, other: Option<&Arc<ReturnAddress>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// Continues a paused run. Tasks at nodes that were changed since the pause fail without a retry.
pub fn run_on(paused: PausedRun, host: &mut dyn Host) -> ChainRun {
    let timer = NodeTimer::begin(host);
    let mut changed = None;
    let mut tasks = Vec::with_capacity(paused.tasks.len());
    let mut last: Option<(ReturnPath, Option<Arc<ReturnAddress>>)> = None;
    for task in paused.tasks {
        let chain = host.chain(task.chain).filter(|chain| {
            let node = chain.nodes.get(task.node);
            node.is_some_and(|node| *node.name == *task.name)
        });
        let known = last.as_ref().filter(|(all, _)| Arc::ptr_eq(all, &task.returns));
        let returns = match known {
            Some((_, returns)) => Some(returns.clone()),
            None => ReturnAddress::found(&task.returns, host),
        };
        let (Some(chain), Some(returns)) = (chain, returns) else {
            changed = Some((task.chain, task.name));
            continue;
        };
        last = Some((task.returns, returns.clone()));
        tasks.push(NodeTask {
            chain,
            node: task.node,
            message: task.message,
            returns,
        });
    }
    let mut runner = ChainRunner::new(None, host);
    // The tasks were found in the time of the message.
    runner.timer = timer;
    runner.tasks = tasks;
    runner.made_bytes = paused.made_bytes;
    runner.steps_before_pause = paused.steps;
    runner.steps_max = runner.steps_max.min((STEPS_MAX as u64).saturating_sub(paused.steps));
    if let Some((chain, name)) = changed {
        let problem = "the rule chain was changed while the message waited";
        runner.run = ChainRun::changed(chain, name.to_string(), problem);
    }
    runner.finish()
}
