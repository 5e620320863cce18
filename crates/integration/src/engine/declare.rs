//! A new configuration while the engine runs: what it declares comes, changes and goes; everything else runs on.

use std::collections::BTreeSet;

use super::*;

impl Engine {
    /// Takes over what is declared now, which has been looked at (`Declared::problems`). The buffer of an action that is declared no more
    /// stays on the disk, for when it comes back.
    pub fn declare(&self, declared: Declared) {
        let mut state = self.state();
        let before = state.definitions.clone();
        state.definitions = declared.over(&state.kept);
        state.origins = declared.origins();
        state.declared = declared;
        let now = state.definitions.clone();
        let change = Change::between(&before, &now);
        let old_sources = self.stop_changed(&mut state, &before, &change);
        self.start_changed(&mut state, &now, &change);
        // What a new source subscribes to, too, stays subscribed.
        old_sources.into_iter().for_each(kinds::Origin::end);
        for id in &change.rules {
            self.prepare_changed(&mut state, &now, id);
        }
        self.enforce(&state);
    }

    fn stop_changed(&self, state: &mut State, before: &Definitions, change: &Change) -> Vec<kinds::Origin> {
        for id in change.actions.iter().filter(|id| before.actions.contains_key(*id)) {
            match state.definitions.actions.contains_key(id) {
                true => self.close_action(state, id),
                false => self.stop_action(state, id),
            }
        }
        let sources = change.sources.iter().filter(|id| before.sources.contains_key(*id));
        let sources = sources.filter_map(|id| self.stop_source(state, id)).collect();
        for name in &change.connectors {
            state.connectors.remove(name);
        }
        sources
    }

    /// Sources before actions, which use connectors.
    fn start_changed(&self, state: &mut State, now: &Definitions, change: &Change) {
        for definition in change.connectors.iter().filter_map(|name| now.connectors.get(name)) {
            self.start_connector(state, definition);
        }
        let sources = || change.sources.iter().filter_map(|id| now.sources.get(id));
        for definition in sources() {
            self.make_source(state, definition);
        }
        for definition in change.actions.iter().filter_map(|id| now.actions.get(id)) {
            self.start_action(state, definition);
        }
        for definition in sources() {
            self.run_source(state, definition);
        }
    }

    fn prepare_changed(&self, state: &mut State, now: &Definitions, id: &str) {
        let Some(definition) = now.rules.get(id) else {
            if let Some(rule) = state.rules.remove(id) {
                rule.tail.end();
            }
            return;
        };
        let rule = state.rules.entry(id.to_owned()).or_default();
        if let Err(problems) = rule.prepare(definition) {
            tracing::error!(rule = id, problems = %problems.join("; "), "a rule is not in force");
        }
    }
}

/// What is not as it was; of actions and sources also those whose connector is not.
struct Change {
    connectors: BTreeSet<String>,
    actions: BTreeSet<String>,
    sources: BTreeSet<String>,
    rules: BTreeSet<String>,
}

impl Change {
    fn between(before: &Definitions, now: &Definitions) -> Change {
        let connectors = differing(&before.connectors, &now.connectors);
        let mut actions = differing(&before.actions, &now.actions);
        let mut sources = differing(&before.sources, &now.sources);
        let all = before.actions.iter().chain(&now.actions);
        let uses = |connector: &String| connectors.contains(connector);
        actions.extend(all.filter(|(_, it)| uses(&it.connector)).map(|(id, _)| id.clone()));
        let all = before.sources.iter().chain(&now.sources);
        sources.extend(all.filter(|(_, it)| uses(&it.connector)).map(|(id, _)| id.clone()));
        Change {
            rules: differing(&before.rules, &now.rules),
            connectors,
            actions,
            sources,
        }
    }
}

/// Names of those that only one has, or that are different.
fn differing<T: PartialEq>(before: &BTreeMap<String, T>, now: &BTreeMap<String, T>) -> BTreeSet<String> {
    let names = before.keys().chain(now.keys());
    names
        .filter(|name| before.get(*name) != now.get(*name))
        .cloned()
        .collect()
}
