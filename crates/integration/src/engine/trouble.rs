//! What does not work of what is enabled, for alarms.

use connectors::HealthState;

use super::*;

/// Something that does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// `action:<id>` and the like; `buffer:<action id>` is a full buffer.
    pub name: String,
    pub because: String,
}

/// What was found at one look.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    pub found: Vec<Trouble>,
    /// Names of those that are about to be known: a connection is being made.
    pub unsure: Vec<String>,
    /// How often publishers have been held back, by action.
    pub held_back: Vec<(String, u64)>,
}

impl Engine {
    pub fn troubles(&self) -> Troubles {
        let _runtime = self.inner.runtime_handle.enter();
        let state = self.state();
        let mut troubles = Troubles::default();
        for (id, action) in &state.actions {
            let name = format!("action:{id}");
            match action {
                // Whoever has paused it knows.
                Ok(running) if running.action.is_paused() => {}
                Ok(running) => {
                    match running.problems.is_empty() {
                        true => troubles.health(name, &running.action.health()),
                        false => troubles.broken(name, &running.problems),
                    }
                    troubles
                        .held_back
                        .push((id.clone(), state.stats(id, running).held_back));
                }
                Err(problems) => troubles.broken(name, problems),
            }
        }
        for (id, source) in &state.sources {
            let name = format!("source:{id}");
            match source {
                Ok(held) => troubles.health(name, &held.origin.health()),
                Err(problems) => troubles.broken(name, problems),
            }
        }
        for (name, connector) in &state.connectors {
            if let Err(problems) = connector {
                troubles.broken(format!("connector:{name}"), problems);
            }
        }
        troubles
    }
}

impl Troubles {
    fn health(&mut self, name: String, health: &Health) {
        match health.state {
            HealthState::Connected => {}
            HealthState::Connecting => self.unsure.push(name),
            HealthState::Disconnected => {
                let because = health.last_error.clone();
                let because = because.unwrap_or_else(|| "the connection was ended".into());
                self.found.push(Trouble { name, because });
            }
        }
    }

    fn broken(&mut self, name: String, problems: &Problems) {
        let because = problems.join("; ");
        self.found.push(Trouble { name, because });
    }
}
