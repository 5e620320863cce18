// Rules that find defects. Prettier decides the format. svelte-check finds wrong types and the warnings of Svelte's
// compiler. svelte/prefer-svelte-reactivity is not used, because state replaces its maps instead of changing them.
import svelte from "eslint-plugin-svelte";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";
import svelteConfig from "./svelte.config.js";

const LINE_MAX = 120;

export default defineConfig(
  { ignores: ["dist", "src/api/generated.ts", "src/rules/words.ts"] },
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  svelte.configs.base,
  // Prettier may leave one word too many on a line that begins with an element and continues with text.
  { rules: { "max-len": ["error", { code: LINE_MAX, ignorePattern: '(/>|</\\w+>|\\}) [^<>{}"`]+$' }] } },
  { files: ["**/*.ts"], languageOptions: { parser: tseslint.parser } },
  { files: ["**/*.svelte"], languageOptions: { parserOptions: { parser: tseslint.parser, svelteConfig } } },
  {
    files: ["src/**/*.ts", "src/**/*.svelte"],
    plugins: { "@typescript-eslint": tseslint.plugin },
    languageOptions: {
      parserOptions: { projectService: true, extraFileExtensions: [".svelte"], tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      eqeqeq: ["error", "always", { null: "ignore" }],
      "no-cond-assign": "error",
      "no-constant-binary-expression": "error",
      "no-constant-condition": "error",
      "no-dupe-else-if": "error",
      "no-duplicate-case": "error",
      "no-empty": "error",
      "no-empty-character-class": "error",
      "no-fallthrough": "error",
      "no-loss-of-precision": "error",
      "no-misleading-character-class": "error",
      "no-self-assign": "error",
      "no-self-compare": "error",
      "no-shadow-restricted-names": "error",
      "no-sparse-arrays": "error",
      "no-unmodified-loop-condition": "error",
      "no-unreachable-loop": "error",
      "no-unsafe-finally": "error",
      "no-unsafe-optional-chaining": "error",
      "no-unused-private-class-members": "error",
      "no-useless-backreference": "error",
      "use-isnan": "error",
      "@typescript-eslint/await-thenable": "error",
      "@typescript-eslint/ban-ts-comment": "error",
      "@typescript-eslint/no-array-delete": "error",
      "@typescript-eslint/no-explicit-any": "error",
      "@typescript-eslint/no-floating-promises": "error",
      "@typescript-eslint/no-for-in-array": "error",
      "@typescript-eslint/no-implied-eval": "error",
      "@typescript-eslint/no-misused-promises": "error",
      "@typescript-eslint/no-unused-expressions": "error",
      "@typescript-eslint/no-unused-vars": ["error", { ignoreRestSiblings: true, argsIgnorePattern: "^_" }],
      "@typescript-eslint/only-throw-error": "error",
      "@typescript-eslint/prefer-promise-reject-errors": "error",
      "@typescript-eslint/restrict-plus-operands": "error",
      "@typescript-eslint/return-await": ["error", "error-handling-correctness-only"],
      "@typescript-eslint/switch-exhaustiveness-check": ["error", { considerDefaultExhaustiveForUnions: true }],
      "svelte/infinite-reactive-loop": "error",
      "svelte/no-at-html-tags": "error",
      "svelte/no-dom-manipulating": "error",
      "svelte/no-dupe-on-directives": "error",
      "svelte/no-dupe-style-properties": "error",
      "svelte/no-dupe-use-directives": "error",
      "svelte/no-not-function-handler": "error",
      "svelte/no-object-in-text-mustaches": "error",
      "svelte/no-unknown-style-directive-property": "error",
      "svelte/no-unnecessary-state-wrap": "error",
      "svelte/prefer-writable-derived": "error",
      "svelte/require-each-key": "error",
      "svelte/valid-each-key": "error",
    },
  },
);
