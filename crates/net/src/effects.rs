//! Performs the effects that the shard requests: closing, resuming, authenticating, reporting.

use std::collections::hash_map::Entry;

use broker::{AccessQuestion, AuthAttempt, AuthOutcome, ConnEpoch, ConnSlot, ConnectCredentials, Effect};

use crate::access_question::{AccessTicket, OpenAccessQuestion};
use crate::auth_pool::{AuthJob, AuthTicket, QUEUE_FULL};
use crate::client_presence::ClientPresence;
use crate::connection::ConnectionStage;
use crate::mailbox_item::MailboxItem;
use crate::slots::SlotRef;
use crate::worker::NetWorker;

impl NetWorker {
    pub(crate) fn do_effects(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        self.shard.take_effects(&mut effects);
        // An effect may cause another one (a failed authentication closes), but never one of the same kind.
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                self.do_effect(effect);
            }
            self.shard.take_effects(&mut effects);
        }
        self.effects = effects;
    }

    fn do_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Close {
                conn,
                has_sent_disconnect,
            } => self.close_for_shard(conn, has_sent_disconnect),
            Effect::Resume { conn } => self.resume(conn),
            Effect::Authenticate {
                conn,
                attempt,
                credentials,
            } => self.authenticate(conn, attempt, credentials),
            Effect::Authorize { conn, epoch, question } => self.authorize(conn, epoch, question),
            Effect::Fetch { purpose, positions } => self.fetch(purpose, positions),
            Effect::Event(event) => {
                let is_wanted = self.common.node.are_client_events_wanted();
                self.common.observer.event(&event, is_wanted);
            }
        }
    }

    fn authenticate(&mut self, conn: ConnSlot, attempt: AuthAttempt, credentials: Box<ConnectCredentials>) {
        let Some((SlotRef { generation, .. }, presence)) = self.begin_question(conn) else {
            return;
        };
        let ticket = AuthTicket {
            conn,
            generation,
            attempt,
        };
        let reply_to = self.mailboxes[usize::from(self.id.0)].clone();
        let job = AuthJob {
            ticket,
            credentials,
            reply_to,
            step: 0,
            presence,
        };
        match self.auth.submit(job) {
            Ok(()) => self.counters.auth_submitted += 1,
            Err(_) => {
                self.counters.auth_queue_full += 1;
                self.end_question(conn);
                self.shard.authenticated(self.now, conn, attempt, QUEUE_FULL);
            }
        }
    }

    fn authorize(&mut self, conn: ConnSlot, epoch: ConnEpoch, question: AccessQuestion) {
        let Some((SlotRef { generation, .. }, presence)) = self.begin_question(conn) else {
            return;
        };
        let ticket = AccessTicket {
            conn,
            generation,
            epoch,
        };
        let reply_to = self.mailboxes[usize::from(self.id.0)].clone();
        self.counters.access_questions += 1;
        let reply = move |is_answered| {
            // If the worker has stopped, the answer is not needed.
            let _ = reply_to.send(MailboxItem::Authorized { ticket, is_answered });
        };
        let question = OpenAccessQuestion::new(question, presence, Box::new(reply));
        if let Err(question) = self.auth.authorize(question) {
            // Without the mailbox, which may be full: only this thread empties it.
            question.discard();
            self.end_question(conn);
            self.shard.authorized(self.now, conn, epoch, false);
        }
    }

    pub(crate) fn authorized(&mut self, ticket: AccessTicket, is_answered: bool) {
        let AccessTicket {
            conn,
            generation,
            epoch,
        } = ticket;
        if !self.slots.is_current(SlotRef { slot: conn, generation }) {
            return;
        }
        self.end_question(conn);
        if self.is_open(conn) {
            self.shard.authorized(self.now, conn, epoch, is_answered);
        }
    }

    pub(crate) fn authenticated(&mut self, ticket: AuthTicket, outcome: AuthOutcome) {
        let AuthTicket {
            conn,
            generation,
            attempt,
        } = ticket;
        if !self.slots.is_current(SlotRef { slot: conn, generation }) {
            return;
        }
        self.end_question(conn);
        if self.is_open(conn) {
            self.shard.authenticated(self.now, conn, attempt, outcome);
        }
    }

    pub(crate) fn is_open(&mut self, conn: ConnSlot) -> bool {
        self.slots
            .get_mut(conn)
            .is_some_and(|connection| matches!(connection.stage, ConnectionStage::Open))
    }

    /// Counts a question about a client. `None` if its connection is closing, so that no answer is needed.
    fn begin_question(&mut self, conn: ConnSlot) -> Option<(SlotRef, ClientPresence)> {
        if !self.is_open(conn) {
            return None;
        }
        let reference = self.slots.reference(conn)?;
        let waiting = self.waiting_clients.entry(conn).or_default();
        waiting.questions += 1;
        Some((reference, waiting.presence.clone()))
    }

    /// A question about a client was answered.
    fn end_question(&mut self, conn: ConnSlot) {
        if let Entry::Occupied(mut waiting) = self.waiting_clients.entry(conn) {
            waiting.get_mut().questions -= 1;
            if waiting.get().questions == 0 {
                waiting.remove();
            }
        }
    }

    /// The connection of a client has closed. Its questions do not have to be answered any more.
    pub(crate) fn abandon_questions(&mut self, conn: ConnSlot) {
        if let Some(waiting) = self.waiting_clients.remove(&conn) {
            waiting.presence.leave();
        }
    }
}
