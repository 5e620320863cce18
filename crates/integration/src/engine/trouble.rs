//! Failures of enabled actions, sources and connectors, for alarms.

use connectors::HealthState;

use super::*;

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFailure {
    /// `action:<id>`, `source:<id>`, `connector:<name>`, or `buffer:<action id>` for a full buffer.
    pub name: String,
    pub reason: String,
}

/// The failures at one point in time.
#[derive(Clone, Debug, Default)]
pub struct EngineFailures {
    pub found: Vec<EngineFailure>,
    /// Names with an undecided state, because a connection is being established.
    pub undecided: Vec<String>,
    /// Why publishers wait now, by action.
    pub full: Vec<(String, String)>,
    /// Messages that had to wait, by action. It grows if publishers begin to wait.
    pub held_back: Vec<(String, u64)>,
    /// Messages for which a rule reached a limit, by rule.
    pub failed_at_limit: Vec<(String, u64)>,
}

impl Engine {
    pub fn troubles(&self) -> EngineFailures {
        let _runtime = self.inner.runtime_handle.enter();
        let state = self.state();
        let mut troubles = EngineFailures::default();
        for (id, action) in &state.actions {
            let name = format!("action:{id}");
            match action {
                Ok(running) => {
                    let buffer = running.action.buffer();
                    let problems = running.problems();
                    match problems.is_empty() {
                        // An operator has paused it on purpose. Its buffer still has to accept messages.
                        _ if running.action.is_paused() && buffer.failure().is_none() => {}
                        true => troubles.health(name, &running.action.health()),
                        false => troubles.add_problems(name, &problems),
                    }
                    if buffer.failure().is_none() {
                        let full = running.free_bytes_min.and_then(|bytes| buffer.wait_reason(bytes));
                        troubles.full.extend(full.map(|reason| (id.clone(), reason)));
                        troubles
                            .held_back
                            .push((id.clone(), running.action.stats().publishers_held_back));
                    }
                }
                Err(problems) => troubles.add_problems(name, problems),
            }
        }
        let rules = state.rules.iter();
        troubles.failed_at_limit = rules
            .map(|(id, rule)| (id.clone(), rule.metrics.counts().failed_at_limit))
            .filter(|(_, failed)| *failed > 0)
            .collect();
        for (id, source) in &state.sources {
            let name = format!("source:{id}");
            match source {
                Ok(entry) => troubles.health(name, &entry.handle.health()),
                Err(problems) => troubles.add_problems(name, problems),
            }
        }
        for (name, connector) in &state.connectors {
            if let Err(problems) = connector {
                troubles.add_problems(format!("connector:{name}"), problems);
            }
        }
        troubles
    }
}

impl EngineFailures {
    fn health(&mut self, name: String, health: &ConnectionHealth) {
        match health.state {
            HealthState::Connected => {}
            HealthState::Connecting => self.undecided.push(name),
            HealthState::Disconnected => {
                let reason = health.last_error.clone();
                let reason = reason.unwrap_or_else(|| "the connection was closed".into());
                self.found.push(EngineFailure { name, reason });
            }
        }
    }

    fn add_problems(&mut self, name: String, problems: &Problems) {
        let reason = problems.join("; ");
        self.found.push(EngineFailure { name, reason });
    }
}
