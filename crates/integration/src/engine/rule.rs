//! Creates, changes and deletes rules, and manages their history.

use super::*;

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

    /// Enables or disables a rule. A disabled rule receives no messages.
    pub fn enable_rule(&self, id: &str, enable: bool) -> Result<RuleView, EngineError> {
        let mut store = self.changes();
        let definition = self.rule(id)?.definition;
        self.replace_rule(&mut store, RuleDefinition { enable, ..definition })
    }

    fn replace_rule(&self, store: &mut DefinitionStore, definition: RuleDefinition) -> Result<RuleView, EngineError> {
        let id = definition.id.as_str();
        let mut problems: Problems = name_problem("id", id).into_iter().collect();
        problems.extend(rule_id_problem(id));
        let (mut rule, is_changed, version) = {
            let state = self.state();
            check_not_pinned("rule", id, &state.origins.rules)?;
            check_limit("rules", &state.stored.definitions.rules, id, &mut problems);
            let is_changed = state.stored.definitions.rules.get(id) != Some(&definition);
            let rule = state.rules.get(id).cloned().unwrap_or_default();
            (rule, is_changed, state.stored.version(id) + 1)
        };
        match rule.prepare(&definition) {
            Ok(()) => problems.extend(compile(&definition, &rule, |_| None).err().into_iter().flatten()),
            Err(invalid) => problems.extend(invalid),
        }
        check_valid(problems)?;
        if is_changed {
            self.store_change(store, &version_of(id, version, Some(&definition)))?;
        }
        let mut state = self.state();
        state.rules.insert(id.to_owned(), rule);
        self.apply_rule(&state, id);
        state.warn(&definition);
        Ok(state.rule_view(&definition))
    }

    pub fn delete_rule(&self, id: &str) -> Result<(), EngineError> {
        let mut store = self.changes();
        let version = {
            let state = self.state();
            check_not_pinned("rule", id, &state.origins.rules)?;
            if !state.stored.definitions.rules.contains_key(id) {
                return Err(not_found("rule", id));
            }
            state.stored.version(id) + 1
        };
        self.store_change(&mut store, &version_of(id, version, None))?;
        let mut state = self.state();
        if let Some(rule) = state.rules.remove(id) {
            rule.tail.end();
        }
        self.apply_rule(&state, id);
        Ok(())
    }

    pub(super) fn prepare_rule(&self, definition: &RuleDefinition) {
        let mut rule = self.state().rules.get(&definition.id).cloned().unwrap_or_default();
        if let Err(problems) = rule.prepare(definition) {
            tracing::error!(rule = %definition.id, problems = %problems.join("; "), "a rule is invalid and not active");
        }
        self.state().rules.insert(definition.id.clone(), rule);
    }

    /// Returns the versions of the rule, the latest last.
    pub fn history(&self, id: &str) -> Result<Vec<Version>, EngineError> {
        let state = self.state();
        state
            .stored
            .history
            .get(id)
            .cloned()
            .ok_or_else(|| not_found("rule", id))
    }

    /// Restores an earlier version of the rule as a new version.
    pub fn roll_back(&self, id: &str, version: u64) -> Result<RuleView, EngineError> {
        let versions = self.history(id)?;
        let found = versions
            .into_iter()
            .find(|old| old.version == version)
            .and_then(|old| old.rule);
        let rule =
            found.ok_or_else(|| EngineError::NotFound(format!("rule {id} has no version {version} to restore")))?;
        self.put_rule(rule)
    }

    pub fn reset_rule_metrics(&self, id: &str) -> Result<(), EngineError> {
        let state = self.state();
        let rule = state.rules.get(id).ok_or_else(|| not_found("rule", id))?;
        rule.metrics.reset();
        Ok(())
    }

    /// Starts sampling the inputs and outputs of the rule.
    pub fn tail(&self, id: &str, per_second: u32) -> Result<TailListener, EngineError> {
        let state = self.state();
        let rule = state.rules.get(id).ok_or_else(|| not_found("rule", id))?;
        Ok(rule.tail.listen(per_second))
    }
}

fn version_of(id: &str, version: u64, rule: Option<&RuleDefinition>) -> DefinitionChange {
    let version = Version {
        version,
        since_unix_ms: unix_ms(),
        rule: rule.cloned(),
    };
    DefinitionChange::Rule(id.to_owned(), version)
}
