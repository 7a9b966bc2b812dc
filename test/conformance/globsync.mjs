// The conformance suite imports globSync from fs, which Node.js has since 22; with
// 20 it does not even load. No command that the tests use calls the function, so
// an empty one does. Use: node --import ./globsync.mjs SUITE
import * as fs from 'node:fs'
import { register } from 'node:module'

if (!('globSync' in fs)) {
  const patched = moduleURL(`
    export * from 'node:fs'
    export { default } from 'node:fs'
    export function globSync() { throw new Error('globSync needs Node.js 22') }`)
  register(moduleURL(`
    export function resolve(name, context, next) {
      const asked = (name === 'fs' || name === 'node:fs') && context.parentURL?.includes('/conformance/')
      return asked ? { url: ${JSON.stringify(patched)}, shortCircuit: true } : next(name, context)
    }`))
}

function moduleURL(source) {
  return 'data:text/javascript,' + encodeURIComponent(source)
}
