//! Rules: made, changed, deleted, and what they have been.

use super::*;

/// `/api/v1/rules/test` tries rules.
const RESERVED_ID: &str = "test";

impl Engine {
    pub fn rules(&self) -> Vec<RuleView> {
        let state = self.state();
        state
            .definitions
            .rules
            .values()
            .map(|definition| state.rule_view(definition))
            .collect()
    }

    pub fn rule(&self, id: &str) -> Result<RuleView, EngineError> {
        let state = self.state();
        let definition = state.definitions.rules.get(id).ok_or_else(|| not_found("rule", id))?;
        Ok(state.rule_view(definition))
    }

    pub fn put_rule(&self, definition: RuleDefinition) -> Result<RuleView, EngineError> {
        self.replace_rule(&mut self.changes(), definition)
    }

    /// A rule that is not enabled stays, and sees nothing.
    pub fn enable_rule(&self, id: &str, enable: bool) -> Result<RuleView, EngineError> {
        let mut store = self.changes();
        let definition = self.rule(id)?.definition;
        self.replace_rule(&mut store, RuleDefinition { enable, ..definition })
    }

    fn replace_rule(&self, store: &mut Store, definition: RuleDefinition) -> Result<RuleView, EngineError> {
        let id = definition.id.as_str();
        let mut problems: Problems = name_problem("id", id).into_iter().collect();
        problems.extend(rule_id_problem(id));
        let (mut rule, is_changed, version) = {
            let state = self.state();
            free("rule", id, &state.origins.rules)?;
            room("rules", &state.kept.definitions.rules, id, &mut problems);
            let is_changed = state.kept.definitions.rules.get(id) != Some(&definition);
            let rule = state.rules.get(id).cloned().unwrap_or_default();
            (rule, is_changed, state.kept.version(id) + 1)
        };
        match rule.prepare(&definition) {
            Ok(()) => problems.extend(compile(&definition, &rule, |_| None).err().into_iter().flatten()),
            Err(wrong) => problems.extend(wrong),
        }
        valid(problems)?;
        if is_changed {
            self.keep(store, &version_of(id, version, Some(&definition)))?;
        }
        let mut state = self.state();
        state.rules.insert(id.to_owned(), rule);
        self.enforce_rule(&state, id);
        state.warn(&definition);
        Ok(state.rule_view(&definition))
    }

    pub fn delete_rule(&self, id: &str) -> Result<(), EngineError> {
        let mut store = self.changes();
        let version = {
            let state = self.state();
            free("rule", id, &state.origins.rules)?;
            if !state.kept.definitions.rules.contains_key(id) {
                return Err(not_found("rule", id));
            }
            state.kept.version(id) + 1
        };
        self.keep(&mut store, &version_of(id, version, None))?;
        let mut state = self.state();
        if let Some(rule) = state.rules.remove(id) {
            rule.tail.end();
        }
        self.enforce_rule(&state, id);
        Ok(())
    }

    pub(super) fn prepare_rule(&self, definition: &RuleDefinition) {
        let mut rule = self.state().rules.get(&definition.id).cloned().unwrap_or_default();
        if let Err(problems) = rule.prepare(definition) {
            tracing::error!(rule = %definition.id, problems = %problems.join("; "), "a rule is not in force");
        }
        self.state().rules.insert(definition.id.clone(), rule);
    }

    /// What the rule has been, the latest last.
    pub fn history(&self, id: &str) -> Result<Vec<Version>, EngineError> {
        let state = self.state();
        state.kept.history.get(id).cloned().ok_or_else(|| not_found("rule", id))
    }

    /// The rule becomes what it was in `version`; that is a new version.
    pub fn roll_back(&self, id: &str, version: u64) -> Result<RuleView, EngineError> {
        let versions = self.history(id)?;
        let found = versions
            .into_iter()
            .find(|old| old.version == version)
            .and_then(|old| old.rule);
        let rule =
            found.ok_or_else(|| EngineError::NotFound(format!("rule {id} has no version {version} to go back to")))?;
        self.put_rule(rule)
    }

    pub fn reset_rule_metrics(&self, id: &str) -> Result<(), EngineError> {
        let state = self.state();
        let rule = state.rules.get(id).ok_or_else(|| not_found("rule", id))?;
        rule.metrics.reset();
        Ok(())
    }

    /// What the rule sees and does from now on, in samples.
    pub fn tail(&self, id: &str, per_second: u32) -> Result<Listener, EngineError> {
        let state = self.state();
        let rule = state.rules.get(id).ok_or_else(|| not_found("rule", id))?;
        Ok(rule.tail.listen(per_second))
    }
}

fn version_of(id: &str, version: u64, rule: Option<&RuleDefinition>) -> Change {
    let version = Version {
        version,
        since_unix_ms: unix_ms(),
        rule: rule.cloned(),
    };
    Change::Rule(id.to_owned(), version)
}

pub fn rule_id_problem(id: &str) -> Option<String> {
    (id == RESERVED_ID).then(|| format!("id: {id:?} stands for something else in the API: choose another"))
}
