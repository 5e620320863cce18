//! Applies a changed configuration to the running engine. Definitions that are unchanged keep running.

use super::*;

impl Engine {
    /// Applies declarations that [`DeclaredDefinitions::problems`] has checked. The buffer of an action that is no
    /// longer declared stays on the disk, for the case that it is declared again.
    pub fn declare(&self, declared: DeclaredDefinitions) {
        let _changes = self.changes();
        self.inner.active_rules.put_rule_time(declared.rule_time);
        let (before, now) = {
            let mut state = self.state();
            let now = declared.override_stored(&state.stored.definitions);
            let before = std::mem::replace(&mut state.definitions, now.clone());
            state.origins = declared.origins();
            (before, now)
        };
        let change = Difference::between(&before, &now);
        let old_sources = self.stop_changed(&before, &now, &change);
        self.start_changed(&now, &change);
        // Subscriptions that a new source also has stay subscribed.
        old_sources.into_iter().for_each(kinds::SourceHandle::end);
        self.apply_actions();
        for id in &change.rules {
            self.change_rule(&now, id);
        }
    }

    fn stop_changed(&self, before: &Definitions, now: &Definitions, change: &Difference) -> Vec<kinds::SourceHandle> {
        for id in change.actions.iter().filter(|id| before.actions.contains_key(*id)) {
            match now.actions.contains_key(id) {
                true => self.close_action(id),
                false => self.stop_action(id),
            }
        }
        let sources = change.sources.iter().filter(|id| before.sources.contains_key(*id));
        let sources = sources.filter_map(|id| self.stop_source(id)).collect();
        let mut state = self.state();
        for name in &change.connectors {
            state.connectors.remove(name);
        }
        sources
    }

    /// Starts sources before actions, because actions begin to use connectors.
    fn start_changed(&self, now: &Definitions, change: &Difference) {
        for definition in change.connectors.iter().filter_map(|name| now.connectors.get(name)) {
            self.start_connector(definition);
        }
        let sources = || change.sources.iter().filter_map(|id| now.sources.get(id));
        for definition in sources() {
            self.create_source(definition);
        }
        for definition in change.actions.iter().filter_map(|id| now.actions.get(id)) {
            self.start_action(definition);
        }
        for definition in sources() {
            self.run_source(definition);
        }
    }

    fn change_rule(&self, now: &Definitions, id: &str) {
        match now.rules.get(id) {
            Some(definition) => self.prepare_rule(definition),
            None => {
                if let Some(rule) = self.state().rules.remove(id) {
                    rule.tail.end();
                }
            }
        }
        self.apply_rule(&self.state(), id);
    }
}

/// Names of changed definitions, including actions and sources whose connector has changed.
struct Difference {
    connectors: BTreeSet<String>,
    actions: BTreeSet<String>,
    sources: BTreeSet<String>,
    rules: BTreeSet<String>,
}

impl Difference {
    fn between(before: &Definitions, now: &Definitions) -> Difference {
        let connectors = differing(&before.connectors, &now.connectors);
        let mut actions = differing(&before.actions, &now.actions);
        let mut sources = differing(&before.sources, &now.sources);
        let all = before.actions.iter().chain(&now.actions);
        let uses = |connector: &String| connectors.contains(connector);
        actions.extend(all.filter(|(_, it)| uses(&it.connector)).map(|(id, _)| id.clone()));
        let all = before.sources.iter().chain(&now.sources);
        sources.extend(all.filter(|(_, it)| uses(&it.connector)).map(|(id, _)| id.clone()));
        Difference {
            rules: differing(&before.rules, &now.rules),
            connectors,
            actions,
            sources,
        }
    }
}

/// Returns the names that exist on one side only or whose values differ.
fn differing<T: PartialEq>(before: &BTreeMap<String, T>, now: &BTreeMap<String, T>) -> BTreeSet<String> {
    let names = before.keys().chain(now.keys());
    names
        .filter(|name| before.get(*name) != now.get(*name))
        .cloned()
        .collect()
}
