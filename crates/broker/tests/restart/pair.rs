//! Tests two shards with one log: messages in transit between them during a checkpoint, and decisions that one shard
//! makes for the other.

use std::path::PathBuf;
use std::sync::Arc;

use journal::{Lsn, RecordLog};
use tidewire_broker::durable::compaction::MovePart;
use tidewire_broker::durable::record::RecordPosition;
use tidewire_broker::durable::recovery::{RecoveredState, Recovery};
use tidewire_broker::*;

use super::NOW;
use super::node::{connect, open, publication, send, subscription};
use crate::rights::ReadRules;

/// Returns the client id of the clients of a shard.
fn client_of(home: usize) -> String {
    let mut names = (0..).map(|number| format!("client {number}"));
    names
        .find(|name| tidewire_broker::home_shard(name, 2) == Some(ShardId(home as u16)))
        .unwrap()
}

struct Pair {
    shards: Vec<Shard>,
    log: RecordLog,
    directory: PathBuf,
    connections: u32,
    /// Mail in transit, by sending shard.
    mail: [Vec<Mail>; 2],
}

impl Pair {
    fn new(name: &str, config: ShardConfig) -> Pair {
        Pair::with_access(name, config, Arc::new(OpenAccess))
    }

    fn with_access(name: &str, config: ShardConfig, access: Arc<dyn AccessControl>) -> Pair {
        let directory = std::env::temp_dir().join(format!("tidewire-restart-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let log = open(&directory, &mut |_, _| ());
        let (node, config) = (Arc::new(NodeState::new(2, 1)), Arc::new(config));
        let new = |id| {
            let (config, node) = (config.clone(), node.clone());
            let mut shard = Shard::new(NOW, ShardId(id), config, access.clone(), node, 1);
            shard.start_journaling(0);
            shard
        };
        Pair {
            shards: (0..2).map(new).collect(),
            log,
            directory,
            connections: 0,
            mail: [Vec::new(), Vec::new()],
        }
    }

    /// Connects a client that belongs to this shard.
    fn connect(&mut self, home: usize, expiry_s: u32) -> ConnSlot {
        let name = client_of(home);
        let conn = ConnSlot(self.connections);
        self.connections += 1;
        connect(&mut self.shards[home], conn, &name, true, expiry_s, None);
        conn
    }

    /// Ends a tick of one shard. Returns the position of its batch, if it has recorded anything.
    fn end_tick(&mut self, of: usize) -> Option<u64> {
        let shard = &mut self.shards[of];
        let at = shard.journal(NOW).batch().map(|batch| self.log.append(batch));
        if let Some(at) = at {
            shard.journal(NOW).appended(at.base.0, at.end.0);
        }
        self.mail[of].extend(shard.take_mail(ShardId(1 - of as u16)));
        self.log.flush().unwrap();
        let committed: Lsn = self.log.committed();
        self.shards
            .iter_mut()
            .for_each(|shard| shard.journal(NOW).committed(committed.0));
        at.map(|at| at.base.0)
    }

    /// Delivers the messages of shard `from` to the other shard.
    fn deliver(&mut self, from: usize) -> bool {
        let mail = std::mem::take(&mut self.mail[from]);
        let is_any = !mail.is_empty();
        mail.into_iter().for_each(|mail| self.shards[1 - from].mail(NOW, mail));
        is_any
    }

    fn settle(&mut self) {
        loop {
            (0..2).for_each(|shard| _ = self.end_tick(shard));
            if !(self.deliver(0) | self.deliver(1)) {
                return;
            }
        }
    }

    /// Continues a checkpoint as far as possible without the other shard. Returns true when it is complete.
    fn walk(&mut self, of: usize) -> bool {
        let mut has_ended = false;
        while self.shards[of].inspect().is_checkpoint_active() {
            has_ended |= self.shards[of].journal(NOW).continue_checkpoint().is_some();
            self.end_tick(of);
        }
        has_ended
    }

    fn recovered_after_a_crash(self, from: u64) -> RecoveredState {
        drop(self.log);
        let mut recovery = Recovery::new();
        open(&self.directory, &mut |position, bytes| {
            if position >= RecordPosition(from) {
                recovery.record(position, bytes).unwrap();
            }
        });
        std::fs::remove_dir_all(&self.directory).unwrap();
        recovery.finish()
    }
}

/// The checkpoint has already written the group when its message returns. It had not written the member, which had no
/// space, when the message arrived there.
#[test]
fn message_returned_by_another_shard_is_in_the_checkpoint() {
    let config = ShardConfig {
        max_inflight: 1,
        max_queued_messages: 1,
        ..ShardConfig::default()
    };
    let mut pair = Pair::new("back", config);
    let group = usize::from(tidewire_broker::group_home_shard("g", "t", 2).0);
    let other = 1 - group;
    let member = pair.connect(other, 1000);
    send(
        &mut pair.shards[other],
        member,
        &subscription("$share/g/t", &mut Vec::new()),
    );
    let publisher = pair.connect(group, 0);
    pair.settle();
    for id in 1..=2 {
        send(&mut pair.shards[group], publisher, &publication("t", id, b"p", false));
        pair.settle();
    }
    send(&mut pair.shards[group], publisher, &publication("t", 3, b"p", false));
    pair.end_tick(group);
    for shard in [group, other] {
        pair.shards[shard].journal(NOW).begin_checkpoint(MovePart::NOTHING);
    }
    let from = pair.end_tick(group).unwrap();
    pair.end_tick(other);
    pair.deliver(other);
    assert!(!pair.walk(group), "the other shard has not written anything");
    pair.deliver(group);
    pair.end_tick(other);
    pair.walk(other);
    pair.deliver(other);
    pair.end_tick(group);
    assert!(pair.walk(group), "the checkpoint is complete");
    let recovered = pair.recovered_after_a_crash(from);
    let entries: usize = recovered.sessions.iter().map(|session| session.entries.len()).sum();
    assert_eq!((recovered.groups[0].messages.len(), entries), (1, 2));
}

/// The only member that may read the topic is offline, on another shard than the group.
#[test]
fn message_assigned_to_another_shard_survives_a_crash() {
    let group = usize::from(tidewire_broker::group_home_shard("g", "#", 2).0);
    let other = 1 - group;
    let rules = Arc::new(ReadRules::default());
    rules.set(&client_of(group), &["a/#"]);
    let mut pair = Pair::with_access("assigned", ShardConfig::default(), rules);
    let join = |pair: &mut Pair, home: usize| {
        let member = pair.connect(home, 1000);
        send(
            &mut pair.shards[home],
            member,
            &subscription("$share/g/#", &mut Vec::new()),
        );
        pair.settle();
        member
    };
    let reader = join(&mut pair, other);
    pair.shards[other].closed(NOW, reader, CloseCause::Network);
    pair.settle();
    let limited = join(&mut pair, group);
    send(&mut pair.shards[group], limited, &publication("b", 1, b"p", false));
    pair.settle();
    let recovered = pair.recovered_after_a_crash(0);
    let entries = recovered
        .sessions
        .iter()
        .map(|session| (&*session.client_id, session.entries.len()));
    let (reader, limited) = (client_of(other), client_of(group));
    let mut entries: Vec<_> = entries.collect();
    entries.sort_unstable_by_key(|(client_id, _)| **client_id != *reader);
    assert_eq!(entries, [(&*reader, 1), (&*limited, 0)]);
    assert_eq!(recovered.groups[0].messages.len(), 0);
}

#[test]
fn message_not_retained_by_its_shard_is_not_recovered() {
    let config = ShardConfig {
        retained_max_payload: 1,
        ..ShardConfig::default()
    };
    for owner in 0..2 {
        let mut pair = Pair::new(&format!("owner-{owner}"), config.clone());
        let publisher = pair.connect(1 - owner, 0);
        let mut topics = ["a", "b", "c", "d", "e", "f"].into_iter();
        let topic = topics
            .find(|topic| tidewire_broker::home_shard(topic, 2) == Some(ShardId(owner as u16)))
            .unwrap();
        send(
            &mut pair.shards[1 - owner],
            publisher,
            &publication(topic, 1, b"1", true),
        );
        pair.settle();
        let end = pair.log.committed().0;
        send(
            &mut pair.shards[1 - owner],
            publisher,
            &publication(topic, 2, b"too long", true),
        );
        pair.settle();
        let recovered = pair.recovered_after_a_crash(0);
        assert_eq!(recovered.retained.len(), 1);
        assert!(recovered.retained[0].message.0 < end);
        assert!(recovered.unrouted.is_empty());
    }
}
