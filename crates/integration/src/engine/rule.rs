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
        let mut state = self.state();
        free("rule", &definition.id, &state.origins.rules)?;
        let mut changed = state.kept.clone();
        let mut problems: Problems = name_problem("id", &definition.id).into_iter().collect();
        problems.extend(rule_id_problem(&definition.id));
        let mut rule = state.rules.get(&definition.id).cloned().unwrap_or_default();
        match rule.prepare(&definition) {
            Ok(()) => problems.extend(compile(&definition, &rule, |_| None).err().into_iter().flatten()),
            Err(wrong) => problems.extend(wrong),
        }
        room("rules", changed.rules.len(), &mut problems);
        valid(problems)?;
        if changed.rules.get(&definition.id) != Some(&definition) {
            changed.note(&definition.id, Some(definition.clone()), unix_ms());
        }
        changed.rules.insert(definition.id.clone(), definition.clone());
        self.save(&mut state, changed)?;
        state.rules.insert(definition.id.clone(), rule);
        self.enforce(&state);
        Ok(state.rule_view(&definition))
    }

    /// A rule that is not enabled stays, and sees nothing.
    pub fn enable_rule(&self, id: &str, enable: bool) -> Result<RuleView, EngineError> {
        let definition = self.rule(id)?.definition;
        self.put_rule(RuleDefinition { enable, ..definition })
    }

    pub fn delete_rule(&self, id: &str) -> Result<(), EngineError> {
        let mut state = self.state();
        free("rule", id, &state.origins.rules)?;
        let mut changed = state.kept.clone();
        if changed.rules.remove(id).is_none() {
            return Err(not_found("rule", id));
        }
        changed.note(id, None, unix_ms());
        self.save(&mut state, changed)?;
        if let Some(rule) = state.rules.remove(id) {
            rule.tail.end();
        }
        self.enforce(&state);
        Ok(())
    }

    /// What the rule has been, the latest last.
    pub fn history(&self, id: &str) -> Result<Vec<Version>, EngineError> {
        let state = self.state();
        state
            .definitions
            .history
            .get(id)
            .cloned()
            .ok_or_else(|| not_found("rule", id))
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

pub fn rule_id_problem(id: &str) -> Option<String> {
    (id == RESERVED_ID).then(|| format!("id: {id:?} stands for something else in the API: choose another"))
}
