//! Messages from the server, and the client's part of their exchange.

use mqtt::{PacketId, PacketType, Publish, QoS};

use super::{Client, Held, Scene};
use crate::oracle::Came;
use crate::speak;

impl Client {
    pub(super) fn publish_came(&mut self, publish: &Publish<'_>, scene: &mut Scene<'_>) {
        let came = Came {
            topic: self.topic_of(publish, scene),
            payload: publish.payload.to_vec(),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
        };
        let id = publish.packet_id.map_or(0, PacketId::get);
        scene.trace.line(|| {
            let text = String::from_utf8_lossy(&came.payload[..came.payload.len().min(8)]).into_owned();
            let Came {
                topic,
                qos,
                retain,
                dup,
                ..
            } = &came;
            format!(
                "c{} gets {text} of {topic}, {qos:?}, id {id}, retain {retain}, dup {dup}",
                self.index
            )
        });
        if publish.qos == QoS::AtMostOnce {
            return self.handed_over(&came, scene);
        }
        self.check_window(id, scene);
        let answer = if publish.qos == QoS::AtLeastOnce {
            PacketType::PubAck
        } else {
            PacketType::PubRec
        };
        self.exchange(id, &came, scene);
        if !self.answers.contains(&(answer, id)) {
            self.answers.push_back((answer, id));
        }
    }

    /// The message belongs to an exchange that is known, or begins one.
    fn exchange(&mut self, id: u16, came: &Came, scene: &mut Scene<'_>) {
        let serial = crate::words::serial_of(&came.payload).unwrap_or(0);
        let known = self.held.get(&id).copied();
        if let Some(held) = known {
            self.check_repetition(id, held, serial, came, scene);
        }
        let is_repetition = known.is_some_and(|held| held.qos == QoS::ExactlyOnce);
        if !is_repetition {
            self.handed_over(came, scene);
        }
        let held = Held {
            serial,
            qos: came.qos,
            is_bound: !came.retain && !came.topic.contains("/q/"),
            retain: came.retain,
            is_from_before: false,
            crashes: scene.oracle.crashes,
            number: self.came.len(),
        };
        self.held.insert(id, held);
        self.came.push(held);
    }

    fn check_repetition(&mut self, id: u16, held: Held, serial: u64, came: &Came, scene: &mut Scene<'_>) {
        let index = self.index;
        // The same message, retained and live, is two deliveries: what was given before the live one is not kept, and the live one goes
        // on under the number of that.
        let is_another = held.serial == serial && held.retain != came.retain;
        // What came before it in the same process and was not kept has left its number to it.
        let is_kept = |held: &Held| held.is_bound && scene.oracle.is_kept(held.serial);
        let mut before = self.came[..held.number].iter().rev();
        let has_moved = before.any(|before| before.crashes == held.crashes && !is_kept(before));
        let may_be_forgotten = is_another || has_moved || !is_kept(&held);
        if held.qos == QoS::AtLeastOnce && held.crashes < scene.oracle.crashes && may_be_forgotten {
            // That it was sent was not kept, or to whom of a group, and is gone with the process.
            return;
        }
        if (held.serial, held.qos) != (serial, came.qos) {
            let text = format!("client {index}: identifier {id} is that of {held:?}, got {came:?} [MQTT-2.2.1-4]");
            return scene.oracle.violated(|| text);
        }
        if !came.dup {
            scene
                .oracle
                .violated(|| format!("client {index}: {came:?}, id {id}, again and without DUP [MQTT-3.3.1-1]"));
        }
        if !held.is_from_before {
            scene
                .oracle
                .violated(|| format!("client {index}: {came:?}, id {id}, twice on one connection [MQTT-4.4.0-1]"));
        }
    }

    fn handed_over(&mut self, came: &Came, scene: &mut Scene<'_>) {
        if let Some(serial) = scene.oracle.came(self.index, came)
            && came.retain
        {
            self.retained.push((came.topic.clone(), serial));
        }
    }

    fn topic_of(&mut self, publish: &Publish<'_>, scene: &mut Scene<'_>) -> String {
        let Some(alias) = publish.properties.topic_alias() else {
            return publish.topic.to_owned();
        };
        if !publish.topic.is_empty() {
            self.aliases.insert(alias, publish.topic.to_owned());
        }
        let known = self.aliases.get(&alias).cloned();
        let maximum = self.terms.as_ref().map_or(0, |terms| terms.topic_alias_maximum);
        if known.is_none() || alias > maximum {
            let index = self.index;
            scene
                .oracle
                .violated(|| format!("client {index}: topic alias {alias} of {maximum} was not told [MQTT-3.1.2-26]"));
        }
        known.unwrap_or_default()
    }

    fn check_window(&mut self, id: u16, scene: &mut Scene<'_>) {
        if !self.open.contains(&id) {
            self.open.push(id);
        }
        let window = self
            .terms
            .as_ref()
            .map_or(0, |terms| usize::from(terms.receive_maximum));
        if self.version().has_properties() && self.open.len() > window {
            let text = format!(
                "client {}: {} messages of {window} [MQTT-3.3.4-9]",
                self.index,
                self.open.len()
            );
            scene.oracle.violated(|| text);
        }
    }

    pub(super) fn pubrel_came(&mut self, id: u16, scene: &mut Scene<'_>) {
        scene.trace.line(|| format!("c{} got PUBREL {id}", self.index));
        if !self.open.contains(&id) {
            self.open.push(id);
        }
        self.held.remove(&id);
        if !self.answers.contains(&(PacketType::PubComp, id)) {
            self.answers.push_back((PacketType::PubComp, id));
        }
    }

    /// Sends the oldest answer that it owes.
    pub fn answer(&mut self, scene: &mut Scene<'_>) -> bool {
        let Some((kind, id)) = self.answers.pop_front() else {
            return false;
        };
        scene.trace.line(|| format!("c{} answers {kind} {id}", self.index));
        if kind == PacketType::PubAck {
            self.held.remove(&id);
        }
        if kind != PacketType::PubRec {
            self.open.retain(|open| *open != id);
        }
        self.write(&speak::answer(kind, id), scene);
        true
    }

    /// What it got on an earlier connection, never answered, and was not sent again although the session goes on.
    pub fn forgotten(&self, crashes: u64) -> Option<u64> {
        self.held
            .values()
            .find(|held| held.is_from_before && held.is_bound && held.crashes == crashes)
            .map(|held| held.serial)
    }
}
